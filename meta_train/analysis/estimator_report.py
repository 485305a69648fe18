"""Reports of `lopt estimators`: a table, a figure and a JSON file."""

import json
import math
from collections.abc import Sequence
from pathlib import Path

from rich import box
from rich.table import Table

from lopt.files.dataclass_json import to_dict
from meta_train.analysis.diagnostics import Diagnosis
from meta_train.estimators import GradientEstimator

SCHEMA = 1


def table(results: Sequence[Diagnosis], reference: GradientEstimator) -> Table:
    """Format the results as a table.

    Args:
        results: Rows of the table, in order.
        reference: Estimator that the results were compared with.
    """
    table = Table(
        box=box.SIMPLE_HEAD,
        padding=0,
        show_edge=False,
        pad_edge=False,
        title="Estimators of the outer gradient, most signal per second first",
        caption=(
            f"Against {type(reference).__name__}, {reference.population_size} members "
            "each. Bias and variance (var) are relative to its gradient; ± is one "
            "standard error, cos the cosine to it. SNR: squared signal over the "
            "variance of one estimate. FLOPs, memory and time are of one estimate, as "
            "compiled and run here. A dash: too slow to measure in the time given."
        ),
    )
    table.add_column("estimator", no_wrap=True)
    for name in ("K", "bias", "cos", "var", "SNR", "MFLOP", "MB", "ms", "SNR/s"):
        table.add_column(name, justify="right", no_wrap=True)
    for result in results:
        biased = result.bias > 2 * result.bias_error
        bias = f"{_number(result.bias)}±{_number(result.bias_error, 1)}"
        table.add_row(
            type(result.estimator).__name__,
            str(result.estimator.truncation.length),
            f"[red]{bias}[/red]" if biased else bias,
            "-" if math.isnan(result.cosine) else f"{result.cosine:.2f}",
            _number(result.variance),
            _number(result.signal_to_noise),
            _number(result.cost.flops / 1e6),
            _number(result.cost.bytes / 1e6),
            _number(1e3 * result.seconds),
            _number(result.signal_per_second),
        )
    return table


def _number(value: float, digits: int = 2) -> str:
    if math.isnan(value):
        return "-"
    if math.isinf(value) or value == 0:
        return f"{value:g}"
    if 1e-2 <= abs(value) < 1e4:
        rounded = float(f"{value:.{digits}g}")
        return f"{rounded:g}"
    mantissa, exponent = f"{value:.{digits - 1}e}".split("e")
    return f"{mantissa}e{int(exponent)}"


def write(directory: Path, results: Sequence[Diagnosis], about: dict) -> None:
    """Write `estimators.json` and `variance.png` to `directory`.

    Non-finite values are written as null.

    Args:
        directory: Output directory, created if missing.
        results: Rows of the JSON file and points of the figure.
        about: Additional top-level entries of the JSON file.
    """
    directory.mkdir(parents=True, exist_ok=True)

    def finite(x):
        return x if math.isfinite(x) else None

    rows = [
        {
            "estimator": to_dict(result.estimator),
            "num_windows": result.num_windows,
            **{
                name: finite(getattr(result, name))
                for name in (
                    "bias",
                    "bias_error",
                    "cosine",
                    "variance",
                    "signal_to_noise",
                    "seconds",
                    "signal_per_second",
                )
            },
            "flops": result.cost.flops,
            "bytes": result.cost.bytes,
        }
        for result in results
    ]
    content = {"schema": SCHEMA, **about, "estimators": rows}
    (directory / "estimators.json").write_text(json.dumps(content, indent=1) + "\n")
    _draw(results, directory / "variance.png")


def _draw(results: Sequence[Diagnosis], path: Path) -> None:
    """Plot the variance of each estimator over the number of windows per episode."""
    # `Figure` needs no display and no global pyplot state.
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.4, 4.2), layout="constrained")
    axis = figure.subplots()
    names = sorted({type(r.estimator).__name__ for r in results})
    markers = "osD^v<>Pp*hXd"
    for i, name in enumerate(names):
        points = sorted(
            (r.num_windows, r.variance)
            for r in results
            if type(r.estimator).__name__ == name and r.variance > 0
        )
        if points:
            windows, variances = zip(*points, strict=True)
            marker = markers[i % len(markers)]
            axis.plot(windows, variances, label=name, marker=marker, color=f"C{i % 10}")
    axis.set(
        xscale="log",
        yscale="log",
        xlabel="windows in an episode",
        ylabel="variance of an estimate / |gradient|²",
    )
    axis.legend(frameon=False, fontsize=8, loc="center left", bbox_to_anchor=(1, 0.5))
    figure.savefig(path, dpi=120)
