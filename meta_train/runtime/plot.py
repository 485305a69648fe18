"""Figures of a run: metrics over outer steps, and learned step sizes."""

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, Key
from typing_extensions import override

from lopt.cli.output import printable
from lopt.errors import UserError
from meta_train.config.config import MetaTrainConfig
from meta_train.core.inner_training import InnerTraining
from meta_train.core.unroll import unroll
from meta_train.core.wrapper import SystemWrapper
from meta_train.runtime.metrics_file import METRICS_FILE, read_metrics
from tasks.base import Data, Input, Loss, State, Theta

FIGURE = "progress.png"


def draw(
    config: MetaTrainConfig,
    out: Path,
    sizes: Mapping[str, Float[np.ndarray, " steps"]] | None = None,
) -> Path:
    """Plot the metrics of a run, as PNG and SVG.

    Args:
        config: Configuration of the run.
        out: Output directory, created if missing.
        sizes: Step sizes along an inner run, by legend label. Without them, the panel
            shows the command that computes them.

    Returns:
        Path of the PNG file.

    Raises:
        UserError: If the run has no metrics yet.
    """
    # `Figure` needs no display and no global pyplot state.
    from matplotlib.figure import Figure

    lines = read_metrics(config.run_dir / METRICS_FILE)
    if not lines:
        raise UserError(
            f"{config.run_dir} has no metrics yet. Run `lopt meta-train` for longer."
        )
    by_task = {
        title: functools.partial(_draw_tasks, metric=metric)
        for title, metric in {
            "meta-loss by task": "meta_loss",
            "validation loss by task": "validation_loss",
        }.items()
        if _parts(lines, metric)
    }
    panels: dict[str, Callable[[Any, Any], None]] = {
        "loss": _draw_losses,
        **by_task,
        "gradient norm": functools.partial(_draw_metric, metric="grad_norm"),
        "signal-to-noise of the gradient": functools.partial(
            _draw_metric, metric="signal_to_noise"
        ),
        "fraction of non-finite members": functools.partial(
            _draw_share, num=config.estimator.population_size
        ),
        "inner steps per second": functools.partial(
            _draw_metric, metric="inner_steps_per_second"
        ),
    }
    num_columns = -(-(len(panels) + 1) // 2)
    figure = Figure(
        figsize=(3.5 * num_columns, 6.2 if by_task else 5.6), layout="constrained"
    )
    axes = list(figure.subplots(2, num_columns).flat)
    for axis, (title, draw_panel) in zip(axes, panels.items(), strict=False):
        draw_panel(axis, lines)
        axis.set_title(title, fontsize=10)
        axis.set_xlabel("outer step", fontsize=8)
        axis.tick_params(labelsize=8)
        axis.spines[["top", "right"]].set_visible(False)
    _draw_steps(axes[len(panels)], sizes, config.run_dir)
    for axis in axes[len(panels) + 1 :]:
        axis.set_axis_off()
    figure.suptitle(printable(config.run_dir.name), fontsize=11, parse_math=False)
    out.mkdir(parents=True, exist_ok=True)
    figure.savefig(out / FIGURE, dpi=110)
    figure.set_layout_engine("none")
    figure.savefig((out / FIGURE).with_suffix(".svg"))
    return out / FIGURE


def _draw_losses(axis: Any, lines: Sequence[Mapping[str, Any]]) -> None:
    axis.plot(*_column(lines, "loss"), color="0.6", lw=0.8, label="population")
    axis.plot(*_column(lines, "meta_loss"), "o-", ms=3, label="fresh inner runs")
    steps, losses = _column(lines, "validation_loss")
    if len(steps) and np.isfinite(losses).any():
        axis.plot(steps, losses, "s-", ms=3, label="validation tasks")
        best = int(np.nanargmin(losses))
        axis.plot(steps[best], losses[best], "k*", ms=9, label="best validation")
    axis.legend(frameon=False, fontsize=8)
    _set_log(axis)


def _draw_tasks(axis: Any, lines: Sequence[Mapping[str, Any]], metric: str) -> None:
    """Plot the loss of each task relative to its first value."""
    for i, name in enumerate(_parts(lines, metric)):
        steps, losses = _column(lines, f"{metric}/{name}")
        style = ("-", "--", ":")[i // 10 % 3]
        axis.plot(steps, losses / abs(losses[0]), style, lw=1, label=name)
    below = {"loc": "upper center", "bbox_to_anchor": (0.5, -0.2), "ncols": 2}
    axis.legend(frameon=False, fontsize=6, columnspacing=1.0, **below)
    axis.set_ylabel("relative to the first", fontsize=8)


def _draw_metric(axis: Any, lines: Sequence[Mapping[str, Any]], metric: str) -> None:
    axis.plot(*_column(lines, metric))
    if metric == "grad_norm":
        _set_log(axis)


def _draw_share(axis: Any, lines: Sequence[Mapping[str, Any]], num: int) -> None:
    steps, count = _column(lines, "num_nonfinite")
    axis.plot(steps, count / num)
    axis.set_ylim(-0.02, 1.0)


def _draw_steps(axis: Any, sizes: Mapping[str, Any] | None, run_dir: Path) -> None:
    """Plot step sizes along an inner run, or show the command that computes them."""
    if not sizes:
        axis.set_axis_off()
        hint = f"lopt plot {printable(str(run_dir))}\ndraws the learned steps here"
        style = {"ha": "center", "color": "0.4", "fontsize": 9}
        axis.text(0.5, 0.5, hint, parse_math=False, **style)
        return
    for i, (name, values) in enumerate(sizes.items()):
        steps = np.arange(1, len(values) + 1)
        axis.plot(steps, values, ("-", "--")[i % 2], label=name)
    axis.set_title("update norm / gradient norm, along an inner run", fontsize=10)
    axis.set_xlabel("inner step", fontsize=8)
    axis.tick_params(labelsize=8)
    axis.spines[["top", "right"]].set_visible(False)
    axis.legend(frameon=False, fontsize=8)
    _set_log(axis)


def _parts(lines: Sequence[Mapping[str, Any]], metric: str) -> list[str]:
    """Collect the names of the tasks that a metric was logged for."""
    prefix = f"{metric}/"
    names = {k[len(prefix) :]: None for line in lines for k in line if prefix in k}
    return list(names)


def _column(
    lines: Sequence[Mapping[str, Any]], name: str
) -> tuple[np.ndarray, np.ndarray]:
    """Extract the outer steps and the values of a metric; null becomes NaN."""
    found = [(line["step"], line[name]) for line in lines if name in line]
    numbers = np.array(found, float).reshape(-1, 2)
    return numbers[:, 0], numbers[:, 1]


def _set_log(axis: Any) -> None:
    values = np.array([y for line in axis.lines for y in line.get_ydata()], float)
    values = values[np.isfinite(values)]
    if len(values) and values.min() > 0:
        axis.set_yscale("log")


@dataclass(frozen=True)
class _StepSizes(SystemWrapper):
    """Inner training whose loss is the ratio of update norm to gradient norm."""

    system: InnerTraining

    @override
    def step(self, theta: Theta, state: State, x: Input) -> tuple[State, Loss]:
        value, grads, _ = self.system.gradient(theta, state, x)
        following = self.system.apply(theta, state, value, grads)
        moved = optax.tree.sub(following.params, state.params)
        return following, optax.tree.norm(moved) / optax.tree.norm(grads)


@functools.partial(jax.jit, static_argnames=("system", "num_steps"))
def step_sizes(
    system: InnerTraining,
    data: Data,
    theta: Theta,
    num_steps: int,
    keys: Key[Array, " runs"],
) -> Float[Array, "runs steps"]:
    """Compute the ratio of update norm to gradient norm along fresh inner runs.

    For plain gradient descent, the ratio is the learning rate.

    Args:
        system: Inner training of a task with a learned optimizer.
        data: Data of `system`, as from `system.load`.
        theta: Outer parameters.
        num_steps: Horizon of each inner run.
        keys: One key per inner run.
    """
    sizes = _StepSizes(system)

    def run(key):
        key_init, key_steps = jax.random.split(key)
        state = sizes.init_state(theta, data, num_steps, key_init)
        return unroll(sizes, data, theta, state, num_steps, key_steps)[1]

    return jax.lax.map(run, keys)


def learned_steps(
    config: MetaTrainConfig, thetas: Mapping[str, Theta], num_runs: int = 4
) -> dict[str, np.ndarray]:
    """Compute the median step size over inner runs of the first task.

    Args:
        config: Configuration of the run.
        thetas: Outer parameters by name.
        num_runs: Number of inner runs, each over the full horizon.

    Returns:
        Median step size at each inner step, of shape ``(horizon,)``, for each name in
        `thetas`. Empty if the first system does not train a learned optimizer.
    """
    system = config.systems[0]
    if not isinstance(system, InnerTraining):
        return {}
    data = system.load()
    keys = jax.random.split(jax.random.key(config.seed), num_runs)
    return {
        name: np.asarray(
            jnp.median(step_sizes(system, data, theta, config.horizon, keys), axis=0)
        )
        for name, theta in thetas.items()
    }
