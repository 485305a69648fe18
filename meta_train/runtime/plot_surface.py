"""Figure of the meta-objective over a theta of one or two numbers, with the run."""

from pathlib import Path
from typing import Any

import jax
import numpy as np
from jaxtyping import Float

from lopt.errors import UserError
from meta_train.analysis.surface import meta_surface
from meta_train.config.config import MetaTrainConfig
from meta_train.runtime.metrics_file import METRICS_FILE, metric_columns, read_metrics

FIGURE = "surface.png"
_MARGIN = 0.5  # of the range of the trajectory, on both sides
_LEAST = 0.5  # half the width of an axis along which theta has not moved


def draw_surface(
    config: MetaTrainConfig, out: Path, num_points: int, num_runs: int = 4
) -> Path:
    """Plot the meta-objective around the trajectory of theta, as PNG.

    Args:
        config: Configuration of the run. Its first system is unrolled.
        out: Output directory, created if missing.
        num_points: Points of the grid along each number of theta.
        num_runs: Inner runs per point.

    Returns:
        Path of the PNG file.

    Raises:
        UserError: If theta has more than two numbers, or if the run has no metrics.
    """
    from matplotlib.figure import Figure

    system, key = config.make_trainer().systems[0], jax.random.key(config.seed)
    data, theta = system.load(), system.init_theta(key)
    size = sum(leaf.size for leaf in jax.tree.leaves(theta))
    if size > 2:
        raise UserError(
            "--surface must be given a run whose theta has one or two numbers; that "
            f"of {config.run_dir} has {size}. Try `fixed` entries of the optimizer."
        )
    columns = metric_columns(read_metrics(config.run_dir / METRICS_FILE))
    names = [name for name in columns if name.partition("/")[0] == "theta"]
    if len(names) != size:
        raise UserError(
            f"{config.run_dir} must have metrics of theta; it has none yet. Run `lopt "
            "meta-train` for longer."
        )
    names.sort(key=lambda name: list(columns).index(name))
    paths = [columns[name][np.isfinite(columns[name])] for name in names]
    axes = [_axis(path, num_points) for path in paths]
    losses = meta_surface(system, data, theta, axes, config.horizon, num_runs, key)
    figure = Figure(figsize=(5.2, 4.2), layout="constrained")
    axis = figure.subplots()
    labels = [name.removeprefix("theta/") for name in names]
    if size == 1:
        axis.plot(axes[0], losses, label="meta-objective")
        at = np.interp(paths[0], axes[0], losses)
        axis.plot(paths[0], at, "k.", ms=3, label="run")
        axis.set(xlabel=labels[0], ylabel=f"meta-objective ({config.objective})")
    else:
        _draw_plane(figure, axis, axes, losses)
        axis.plot(*paths, "w-", lw=1)
        axis.plot(paths[0][0], paths[1][0], "wo", mec="k", label="start")
        axis.plot(paths[0][-1], paths[1][-1], "w*", mec="k", ms=11, label="end")
        axis.set(xlabel=labels[0], ylabel=labels[1])
    axis.legend(fontsize=8)
    out.mkdir(parents=True, exist_ok=True)
    figure.savefig(out / FIGURE, dpi=110)
    return out / FIGURE


def _axis(path: Float[np.ndarray, " steps"], num: int) -> Float[np.ndarray, " n"]:
    low, high = float(path.min()), float(path.max())
    margin = max(_MARGIN * (high - low), _LEAST)
    return np.linspace(low - margin, high + margin, num)


def _draw_plane(figure: Any, axis: Any, axes: Any, losses: Any) -> None:
    finite = np.where(np.isfinite(losses), losses, np.nan)
    most = np.nanpercentile(finite, 90)
    colors = np.clip(finite, None, most).T
    mesh = axis.pcolormesh(*axes, colors, cmap="viridis", shading="nearest")
    figure.colorbar(mesh, ax=axis, label="meta-objective")
