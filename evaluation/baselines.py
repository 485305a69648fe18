"""Hand-designed baselines whose tunable hyperparameters take the place of `theta`."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, PRNGKeyArray
from optax import contrib
from typing_extensions import override

from lopt.base import LearnedOptimizer, NumSteps, Theta
from lopt.errors import UserError, lookup

RATES_PER_DECADE, NUM_RATES = 3, 10
SCHEDULES = ("constant", "cosine")


class Setting(NamedTuple):
    """Hyperparameters that are tuned: peak learning rate and schedule.

    Both fields are scalars, or arrays with one entry for each setting.

    Attributes:
        learning_rate: Peak learning rate.
        cosine: 1 for cosine decay to zero over the run, 0 for a constant rate.
    """

    learning_rate: Float[Array | np.ndarray, "..."]
    cosine: Float[Array | np.ndarray, "..."]


class Kind(NamedTuple):
    """Entry of the baseline registry.

    Attributes:
        make: Constructs the optax transformation from a learning rate or schedule.
        lowest: Base-10 logarithm of the smallest learning rate in the initial grid.
        is_pointwise: Whether the update is elementwise, independent of tensor shapes.
    """

    make: Callable[[Any], optax.GradientTransformation]
    lowest: float
    is_pointwise: bool = True


BASELINES: dict[str, Kind] = {
    "sgd": Kind(optax.sgd, -2.0),
    "momentum": Kind(lambda rate: optax.sgd(rate, momentum=0.9), -3.0),
    "adam": Kind(optax.adam, -4.0),
    "adamw": Kind(optax.adamw, -4.0),
    "nadamw": Kind(optax.nadamw, -4.0),
    "lion": Kind(optax.lion, -4.5),
    "muon": Kind(contrib.muon, -3.5, is_pointwise=False),
    "schedule-free": Kind(contrib.schedule_free_adamw, -3.5),
}


@dataclass(frozen=True)
class Baseline(LearnedOptimizer):
    """Optax optimizer, by name, with `theta` a `Setting`.

    Different settings can thus be run together with ``jax.vmap`` over `theta`.
    """

    name: str = "adam"
    """Key in `BASELINES`."""

    def __post_init__(self):
        lookup("baseline", self.name, BASELINES)

    @property
    def is_pointwise(self) -> bool:
        """Whether flattening the parameters to one vector leaves updates unchanged."""
        return BASELINES[self.name].is_pointwise

    @override
    def init_theta(self, key: PRNGKeyArray) -> Setting:
        return setting(10.0 ** (BASELINES[self.name].lowest + 1))

    @override
    def as_optax(
        self, theta: Setting, num_steps: NumSteps
    ) -> optax.GradientTransformationExtraArgs:
        schedule = _schedule(theta, num_steps)
        return optax.with_extra_args_support(BASELINES[self.name].make(schedule))


@dataclass(frozen=True)
class Rescheduled(LearnedOptimizer):
    """Learned optimizer whose learning rate and schedule are tuned.

    Its outer parameters are ``(theta, setting)``. Updates of `optimizer` at `theta` are
    multiplied by ``schedule(step) / optimizer.learning_rate``.
    """

    optimizer: LearnedOptimizer
    """Optimizer with a field `learning_rate`, which the setting replaces."""

    @override
    def init_theta(self, key: PRNGKeyArray) -> tuple[Theta, Setting]:
        rate = self.optimizer.learning_rate  # pyright: ignore
        return self.optimizer.init_theta(key), setting(rate)

    @override
    def as_optax(
        self, theta: tuple[Theta, Setting], num_steps: NumSteps
    ) -> optax.GradientTransformationExtraArgs:
        weights, tuned = theta
        rate = self.optimizer.learning_rate  # pyright: ignore
        schedule = _schedule(tuned, num_steps)

        def relative(step):
            return schedule(step) / rate

        return optax.with_extra_args_support(
            optax.chain(
                self.optimizer.as_optax(weights, num_steps),
                optax.scale_by_schedule(relative),
            )
        )


@dataclass(frozen=True)
class Fixed(LearnedOptimizer):
    """Optax optimizer without outer parameters: `theta` is ``()``."""

    transformation: optax.GradientTransformation

    @override
    def init_theta(self, key: PRNGKeyArray) -> tuple[()]:
        return ()

    @override
    def as_optax(
        self, theta: tuple[()], num_steps: NumSteps
    ) -> optax.GradientTransformationExtraArgs:
        return optax.with_extra_args_support(self.transformation)


class Candidate(NamedTuple):
    """Optimizer whose learning rate and schedule are tuned.

    Attributes:
        name: Name in the report.
        optimizer: A `Baseline`, or a `Rescheduled` learned optimizer.
        theta: Outer parameters shared by all settings; ``()`` for a baseline.
        lowest: Base-10 logarithm of the smallest learning rate in the initial grid.
    """

    name: str
    optimizer: LearnedOptimizer
    theta: Theta
    lowest: float

    def with_settings(self, settings: Setting) -> Any:
        """Stack `theta` for several settings, along a leading axis."""
        if isinstance(self.optimizer, Baseline):
            return settings
        num = len(settings.learning_rate)

        def repeat(x):
            return np.broadcast_to(x, (num, *np.shape(x)))

        return jax.tree.map(repeat, self.theta), settings


def candidate(name: str) -> Candidate:
    """Make a candidate from the baseline `name`."""
    return Candidate(name, Baseline(name), (), BASELINES[name].lowest)


def tunable(name: str, optimizer: LearnedOptimizer, theta: Theta) -> Candidate:
    """Make a candidate from a learned optimizer with a learning rate.

    The initial grid is centered, on a logarithmic scale, on `optimizer.learning_rate`.

    Raises:
        UserError: If `optimizer` has no float field `learning_rate`.
    """
    rate = getattr(optimizer, "learning_rate", None)
    if not isinstance(rate, float):
        raise UserError(
            f"`tune` must name an optimizer with a learning rate; {name} is a "
            f"{type(optimizer).__name__}, which has none: there is nothing to tune."
        )
    span = (NUM_RATES - 1) / RATES_PER_DECADE
    lowest = float(np.log10(rate)) - span / 2
    return Candidate(name, Rescheduled(optimizer), theta, lowest)


def _schedule(setting: Setting, num_steps: NumSteps) -> Callable[[Any], Any]:
    """Make the learning rate schedule of a setting.

    The rate is ``learning_rate * (1 - cosine * (1 - cos(pi * t)) / 2)`` with ``t = step
    / num_steps``, clamped to at most 1. Both kinds of schedule share this formula, so
    that they run in one vectorized program.
    """
    total = jnp.asarray(num_steps, jnp.float32)

    def schedule(step):
        progress = jnp.minimum(jnp.asarray(step, jnp.float32) / total, 1.0)
        decay = 1 - setting.cosine * 0.5 * (1 - jnp.cos(jnp.pi * progress))
        return setting.learning_rate * decay

    return schedule


def setting(learning_rate: float, schedule: str = "constant") -> Setting:
    """Make a `Setting` from a learning rate and a name in `SCHEDULES`."""
    cosine = SCHEDULES.index(schedule)
    return Setting(
        jnp.asarray(learning_rate, jnp.float32), jnp.asarray(cosine, jnp.float32)
    )


def first_rates(candidate: Candidate) -> Float[np.ndarray, " rates"]:
    """Initial grid of learning rates."""
    return _rates(candidate.lowest)


def further_rates(
    rates: Float[np.ndarray, " rates"], *, above: bool
) -> Float[np.ndarray, " more"]:
    """Extend a grid by `NUM_RATES` learning rates.

    Args:
        rates: Current grid, ascending, with `RATES_PER_DECADE` rates in a decade.
        above: Whether to extend beyond the largest rate, or below the smallest.

    Returns:
        The new rates only.
    """
    lowest = np.log10(rates[0])
    span = (len(rates) if above else -NUM_RATES) / RATES_PER_DECADE
    return _rates(lowest + span)


def _rates(lowest: float) -> Float[np.ndarray, " rates"]:
    return 10 ** (lowest + np.arange(NUM_RATES) / RATES_PER_DECADE)
