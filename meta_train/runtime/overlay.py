"""Figures over several runs: their metrics side by side, or mean and range of seeds."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from lopt.errors import UserError
from meta_train.runtime.metrics_file import METRICS_FILE, metric_columns, read_metrics

_PANELS = {
    "meta_loss": "meta-loss",
    "validation_loss": "validation loss",
    "loss": "loss of the population",
    "grad_norm": "gradient norm",
    "signal_to_noise": "signal-to-noise of the gradient",
}
_STYLES = ("-", "--", "-.", ":")

Columns = Mapping[str, np.ndarray]


def draw_runs(run_dirs: Sequence[Path], out: Path) -> Path:
    """Plot the metrics of several runs in the same panels, as PNG and SVG.

    Args:
        run_dirs: Run directories.
        out: Path of the PNG file.

    Returns:
        `out`.

    Raises:
        UserError: If a run has no metrics yet.
    """
    return _draw({_label(d, run_dirs): [_columns(d)] for d in run_dirs}, out)


def draw_seeds(name: str, run_dirs: Sequence[Path], out: Path) -> Path:
    """Plot the mean of each metric over the seeds of one configuration, and its range.

    Args:
        name: Name of the configuration, for the legend.
        run_dirs: Run directory of each seed.
        out: Path of the PNG file.

    Returns:
        `out`.
    """
    return _draw({name: [_columns(d) for d in run_dirs]}, out)


def _draw(groups: Mapping[str, Sequence[Columns]], out: Path) -> Path:
    # `Figure` needs no display and no global pyplot state.
    from matplotlib.figure import Figure

    everything = [columns for group in groups.values() for columns in group]
    panels = {m: t for m, t in _PANELS.items() if any(m in c for c in everything)}
    figure = Figure(figsize=(4 * len(panels), 3.4), layout="constrained")
    axes = figure.subplots(1, len(panels), squeeze=False)[0]
    for axis, (metric, title) in zip(axes, panels.items(), strict=True):
        for i, (label, group) in enumerate(groups.items()):
            known = [columns for columns in group if metric in columns]
            if known:
                style = {"color": f"C{i % 10}", "ls": _STYLES[i // 10 % 4]}
                _plot(axis, known, metric, label, style)
        axis.set_title(title, fontsize=10)
        axis.set_xlabel("outer step", fontsize=8)
        axis.tick_params(labelsize=8)
        axis.spines[["top", "right"]].set_visible(False)
    for text in axes[0].legend(frameon=False, fontsize=8).get_texts():
        text.set_parse_math(False)
    out.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(out, dpi=110)
    figure.savefig(out.with_suffix(".svg"))
    return out


def _plot(
    axis: Any, group: Sequence[Columns], metric: str, label: str, style: dict[str, Any]
) -> None:
    """Plot the mean of a metric over runs at their common steps, and its range."""
    curves = [
        dict(zip(columns["step"], columns[metric], strict=True)) for columns in group
    ]
    shared = sorted(set.intersection(*(set(curve) for curve in curves)))
    values = np.array([[curve[step] for step in shared] for curve in curves])
    steps = np.array(shared)[~np.isnan(values).any(axis=0)]
    values = values[:, ~np.isnan(values).any(axis=0)]
    axis.plot(steps, values.mean(axis=0), lw=1.2, label=label, **style)
    if len(curves) > 1:
        low, high = values.min(axis=0), values.max(axis=0)
        axis.fill_between(steps, low, high, color=style["color"], alpha=0.2, lw=0)


def _columns(run_dir: Path) -> Columns:
    lines = read_metrics(run_dir / METRICS_FILE)
    if not lines:
        raise UserError(
            f"{run_dir} must be a run directory with metrics; it has none. Try "
            "`lopt runs` to list runs."
        )
    return metric_columns(lines)


def _label(run_dir: Path, run_dirs: Sequence[Path]) -> str:
    """Name of a run directory, with its parent if another has the same name."""
    names = [path.resolve().name for path in run_dirs]
    path = run_dir.resolve()
    return (
        path.name if names.count(path.name) == 1 else f"{path.parent.name}/{path.name}"
    )
