"""How the pages say how far predictions are off."""

from collections.abc import Collection

import numpy as np


def middle_and_tenth(errors: Collection[float]) -> tuple[float, float]:
    """The median of some errors without their signs, and their 90th percentile."""
    middle, worst_tenth = np.percentile(np.abs([*errors]), [50, 90])
    return float(middle), float(worst_tenth)


def off_by(errors: Collection[float]) -> str:
    """The same in words."""
    middle, worst_tenth = middle_and_tenth(errors)
    return f"{middle:.1%} in the median and {worst_tenth:.1%} at the 90th percentile"
