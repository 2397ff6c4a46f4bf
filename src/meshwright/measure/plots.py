"""Pictures of measurements; they need the extra `report` (Matplotlib)."""

from collections.abc import Sequence
from io import BytesIO
from pathlib import Path

from meshwright.errors import SpecError
from meshwright.measure.accuracy import Pair
from meshwright.text.files import write_file


def scatter(pairs: Sequence[Pair], path: Path) -> None:
    """Predicted over measured times of all programs, and the line where both agree."""
    try:
        import matplotlib
    except ImportError as error:
        raise SpecError(f"plots need Matplotlib ({error}): pip install 'meshwright[report]'") from None
    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(6, 5), layout="constrained")
    for system in dict.fromkeys(pair.system for pair in pairs):
        outcomes = [outcome for pair in pairs if pair.system == system for outcome in pair.outcomes]
        axes.scatter(
            [outcome.measured for outcome in outcomes],
            [outcome.predicted for outcome in outcomes],
            s=12,
            alpha=0.6,
            label=system,
        )
    times = [time for pair in pairs for outcome in pair.outcomes for time in (outcome.measured, outcome.predicted)]
    ends = [min(times), max(times)]
    axes.plot(ends, ends, color="black", linewidth=0.8)
    axes.set(xscale="log", yscale="log", xlabel="measured seconds", ylabel="predicted seconds")
    axes.legend(frameon=False)
    form = path.suffix.removeprefix(".").lower() or "png"
    drawn = BytesIO()
    try:
        figure.savefig(drawn, format=form, metadata={"Date": None} if form == "svg" else None)
    except ValueError as error:
        raise SpecError(f"cannot draw {str(path)!r}: {error}") from None
    finally:
        pyplot.close(figure)
    write_file(path, drawn.getvalue())
