"""How the pages say how far predictions are off."""

from collections.abc import Collection

import numpy as np


def off_by(errors: Collection[float]) -> str:
    """The median and the 90th percentile of some errors, without their signs."""
    middle, worst_tenth = np.percentile(np.abs([*errors]), [50, 90])
    return f"{middle:.1%} in the median and {worst_tenth:.1%} at the 90th percentile"
