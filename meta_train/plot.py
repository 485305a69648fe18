"""Figures of a run, from its metrics and its theta."""

import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, Key

from lopt.errors import UserError
from meta_train.config import MetaTrainConfig
from meta_train.inner_training import InnerTraining
from meta_train.metrics import METRICS_FILE, read_metrics
from tasks.base import Data, Theta

FIGURE = "progress.png"


def draw(
    config: MetaTrainConfig,
    out: Path,
    sizes: Mapping[str, Float[np.ndarray, " steps"]] | None = None,
) -> Path:
    """Draws the run of `config` from its metrics.

    Args:
        config: Of the run.
        out: Directory for the figure, as PNG and SVG.
        sizes: Step sizes along an inner run, by name, if they are known.

    Returns:
        Where the PNG is.
    """
    from matplotlib.figure import Figure  # no window, no global state

    lines = read_metrics(config.run_dir / METRICS_FILE)
    if not lines:
        raise UserError(
            f"{config.run_dir} has no metrics yet. Run `lopt meta-train` for longer."
        )
    members = config.estimator.population_size
    figure = Figure(figsize=(10.5, 5.6), layout="constrained")
    axes = list(figure.subplots(2, 3).flat)
    column = functools.partial(_column, lines)
    axes[0].plot(*column("loss"), color="0.6", lw=0.8, label="loss of the population")
    axes[0].plot(*column("meta_loss"), "o-", ms=3, label="meta-loss, fresh inner runs")
    for name in sorted({k for line in lines for k in line if "meta_loss/" in k}):
        axes[0].plot(*column(name), "--", lw=0.8, label=name)
    axes[0].legend(frameon=False, fontsize=8)
    axes[1].plot(*column("grad_norm"))
    axes[2].plot(*column("signal_to_noise"))
    steps, count = column("num_nonfinite")
    axes[3].plot(steps, count / members)
    axes[3].set_ylim(-0.02, 1.0)
    axes[4].plot(*column("inner_steps_per_second"))
    for i, (name, values) in enumerate((sizes or {}).items()):
        style = ("-", "--")[i % 2]
        axes[5].plot(np.arange(1, len(values) + 1), values, style, label=name)
    titles = (
        *("loss", "gradient norm", "signal-to-noise of the gradient"),
        *("share of members not finite", "inner steps per second"),
        "step over gradient, along an inner run",
    )
    for axis, title in zip(axes, titles, strict=True):
        axis.set_title(title, fontsize=10)
        axis.set_xlabel("outer step", fontsize=8)
        axis.tick_params(labelsize=8)
        axis.spines[["top", "right"]].set_visible(False)
    for axis in (axes[0], axes[1], axes[5]):
        _set_log(axis)
    axes[5].set_xlabel("inner step", fontsize=8)
    if sizes:
        axes[5].legend(frameon=False, fontsize=8)
    else:
        axes[5].clear()
        axes[5].set_axis_off()
        hint = f"lopt plot {config.run_dir}\ndraws the learned steps here"
        axes[5].text(0.5, 0.5, hint, ha="center", color="0.4", fontsize=9)
    figure.suptitle(config.run_dir.name, fontsize=11)
    out.mkdir(parents=True, exist_ok=True)
    figure.savefig(out / FIGURE, dpi=110)
    figure.set_layout_engine("none")
    figure.savefig((out / FIGURE).with_suffix(".svg"))
    return out / FIGURE


def _column(
    lines: Sequence[Mapping[str, Any]], name: str
) -> tuple[np.ndarray, np.ndarray]:
    """Returns the steps at which a metric was logged, and what it was."""
    found = [(line["step"], line[name]) for line in lines if name in line]
    numbers = np.array(found, float).reshape(-1, 2)  # null is not a number
    return numbers[:, 0], numbers[:, 1]


def _set_log(axis: Any) -> None:
    values = [y for line in axis.lines for y in line.get_ydata()]
    if values and np.nanmin(values) > 0:
        axis.set_yscale("log")


@functools.partial(jax.jit, static_argnames=("system", "num_steps"))
def step_sizes(
    system: InnerTraining,
    data: Data,
    theta: Theta,
    num_steps: int,
    keys: Key[Array, " runs"],
) -> Float[Array, "runs steps"]:
    """Returns the length of each step over that of its gradient, on fresh inner runs.

    Of plain gradient descent that is the learning rate.
    """

    def step(state, key):
        x = system.sample_input(data, state, key)
        value, grads, _ = system.gradient(theta, state, x)
        following = system.apply(theta, state, value, grads)
        moved = optax.tree.sub(following.params, state.params)
        return following, optax.tree.norm(moved) / optax.tree.norm(grads)

    def run(key):
        key_init, key_steps = jax.random.split(key)
        state = system.init_state(theta, data, num_steps, key_init)
        return jax.lax.scan(step, state, jax.random.split(key_steps, num_steps))[1]

    return jax.lax.map(run, keys)


def learned_steps(
    config: MetaTrainConfig, thetas: Mapping[str, Theta], num_runs: int = 4
) -> dict[str, np.ndarray]:
    """Returns the middle step size over some runs of the first task, by theta."""
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
