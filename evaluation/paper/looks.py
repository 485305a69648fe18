"""Colors, line styles and axes that all figures of the paper share."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from evaluation.paper.records import Records

# The same color and line style for a method in all figures. Methods are
# distinguishable without color.
LOOKS: dict[str, dict[str, Any]] = {
    "PES": {"color": "C3", "ls": "-", "marker": "o", "lw": 2.0},
    "ES": {"color": "C0", "ls": "--", "marker": "s", "lw": 1.6},
    "PES+Analytic": {"color": "C1", "ls": "-.", "marker": "^", "lw": 1.6},
    "full ES": {"color": "C2", "ls": (0, (5, 1)), "marker": "D", "lw": 1.6},
    "ARS V1": {"color": "C4", "ls": ":", "marker": "v", "lw": 1.8},
    "TBPTT": {"color": "C7", "ls": "--", "marker": "x", "lw": 1.4},
    "TBPTT, K = 1": {"color": "0.75", "ls": ":", "marker": "1", "lw": 1.4},
    "TBPTT, K = 10": {"color": "0.55", "ls": "--", "marker": "2", "lw": 1.4},
    "TBPTT, K = 100": {"color": "0.3", "ls": "-.", "marker": "3", "lw": 1.4},
    "RTRL": {"color": "k", "ls": "-", "marker": "", "lw": 1.4},
    "UORO": {"color": "C5", "ls": (0, (3, 1, 1, 1)), "marker": "P", "lw": 1.4},
    "random search": {"color": "C8", "ls": ":", "marker": "X", "lw": 1.6},
    "TPE": {"color": "C9", "ls": "-.", "marker": "<", "lw": 1.6},
    "Hyperband": {"color": "C6", "ls": (0, (8, 3)), "marker": ">", "lw": 1.6},
}
_STYLES = ("-", "--", "-.", ":", (0, (5, 1)), (0, (3, 1, 1, 1)))


def look(method: str, index: int = 0) -> dict[str, Any]:
    """Line properties of a method; those of its base name and `index` for variants.

    A variant such as ``PES, K = 10`` has the color of PES and a line style by index.
    """
    if method in LOOKS:
        return dict(LOOKS[method])
    base = method.split(",")[0]
    own = LOOKS.get(base, {"marker": "o", "lw": 1.6, "color": f"C{index % 10}"})
    return {**own, "ls": _STYLES[index % len(_STYLES)]}


def shade(value: float, index: int) -> dict[str, Any]:
    """Line properties of a value of an ablation, from light to dark in [0, 1]."""
    grey = 0.75 - 0.75 * value
    line = {"color": (0.9, grey, grey), "lw": 1.8}
    return {**line, "ls": _STYLES[index % len(_STYLES)], "marker": "os^Dv"[index % 5]}


def axes(num: int, *, columns: int = 3, size: float = 3.6) -> tuple[Figure, list[Axes]]:
    """Create a figure with a row of axes for each `columns` panels."""
    columns = min(columns, num)
    rows = -(-num // columns)
    figure = Figure(figsize=(size * columns + 0.4, 0.82 * size * rows + 0.3))
    figure.set_layout_engine("constrained")
    panels = list(figure.subplots(rows, columns, squeeze=False).flat)
    for axis in panels[num:]:
        axis.set_axis_off()
    for axis in panels[:num]:
        axis.tick_params(labelsize=8)
        axis.spines[["top", "right"]].set_visible(False)
    return figure, panels[:num]


def curve(
    axis: Axes,
    x: Sequence[Any] | np.ndarray,
    values: Float[np.ndarray, "seeds points"],
    style: dict[str, Any],
    label: str,
) -> None:
    """Plot the mean over seeds, and their range as a shaded area."""
    finite = np.where(np.isfinite(values), values, np.nan)
    x, mean = np.asarray(x, float), finite.mean(axis=0)
    every = max(1, len(x) // 8)
    axis.plot(x, mean, label=label, ms=4, markevery=every, **style)
    low, high = finite.min(axis=0), finite.max(axis=0)
    axis.fill_between(x, low, high, color=style.get("color"), alpha=0.15, lw=0)


def curves(axis: Axes, results: Records, methods: Sequence[str], scale=1.0) -> None:
    """Plot the meta-loss of several methods over outer updates, times `scale`."""
    for i, name in enumerate(methods):
        steps, losses = results.curve(name)
        curve(axis, scale * steps, losses, look(name, i), name)


def surface(figure: Figure, axis: Axes, found: Mapping[str, Any], label: str) -> None:
    """Draw a meta-objective surface, the result of a job; darker is better."""
    values = np.asarray(found["losses"], float).T
    values = np.where(np.isfinite(values), values, np.nan)
    low, high = np.nanmin(values), np.nanpercentile(values, 75)
    mesh = axis.pcolormesh(
        *map(np.asarray, found["axes"]),
        np.clip(values, low, high),
        cmap="viridis",
        shading="nearest",
        rasterized=True,
    )
    axis.set_facecolor("0.85")
    bar = figure.colorbar(mesh, ax=axis, shrink=0.85)
    bar.set_label(label, fontsize=8)
    bar.ax.tick_params(labelsize=7)


def trajectories(
    axis: Axes,
    paths: Float[np.ndarray, "seeds points 2"],
    style: dict[str, Any],
    label: str,
) -> None:
    """Draw trajectories of theta, with a marker at each end."""
    line = {"color": style["color"], "ls": style["ls"], "lw": style["lw"]}
    for i, path in enumerate(paths):
        axis.plot(*path.T, label=label if i == 0 else None, **line)
        axis.plot(*path[-1], marker=style["marker"] or "*", color=style["color"], ms=7)
    axis.plot(*paths[0][0], "wo", mec="k", ms=5)


def legend(axis: Axes, **options: Any) -> None:
    """Add a legend in the common size."""
    axis.legend(**{"frameon": False, "fontsize": 7, **options})
