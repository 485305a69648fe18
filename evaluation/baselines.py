"""Baselines: hand-designed optimizers, with what is tuned in the place of theta."""

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
from lopt.errors import UserError, find

RATES_PER_DECADE, NUM_RATES = 3, 10
SCHEDULES = ("constant", "cosine")


class Setting(NamedTuple):
    """What is tuned of a baseline.

    Attributes:
        learning_rate: The largest one.
        cosine: 1 if it falls to nothing along half a cosine, 0 if it is constant.
    """

    learning_rate: Float[Array | np.ndarray, "..."]
    cosine: Float[Array | np.ndarray, "..."]


class Kind(NamedTuple):
    """A hand-designed optimizer.

    Attributes:
        make: Takes a learning rate, or a schedule, and returns it.
        lowest: Logarithm to base ten of the first learning rate that is tried.
        is_pointwise: Whether it treats every parameter alone, whatever its tensor.
    """

    make: Callable[[Any], optax.GradientTransformation]
    lowest: float
    is_pointwise: bool = True


KINDS: dict[str, Kind] = {
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
    """An optimizer of optax by name, so tuning it is mapping over theta."""

    name: str = "adam"
    """Which."""

    def __post_init__(self):
        find("baseline", self.name, KINDS)

    @property
    def is_pointwise(self) -> bool:
        """Whether a vector of all parameters is the same to it as their tensors."""
        return KINDS[self.name].is_pointwise

    @override
    def init_theta(self, key: PRNGKeyArray) -> Setting:
        return setting(10.0 ** (KINDS[self.name].lowest + 1))

    @override
    def as_optax(
        self, theta: Setting, num_steps: NumSteps
    ) -> optax.GradientTransformationExtraArgs:
        schedule = _schedule(theta, num_steps)
        return optax.with_extra_args_support(KINDS[self.name].make(schedule))


@dataclass(frozen=True)
class Rescheduled(LearnedOptimizer):
    """A learned optimizer with a learning rate, tuned as the baselines are.

    Its theta is ``(theta, setting)``: the weights and what is tuned.
    """

    optimizer: LearnedOptimizer
    """Has a field `learning_rate`, which the setting replaces."""

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
    """An optax optimizer as it is: theta is empty."""

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
    """An optimizer whose learning rate and schedule are tuned.

    Attributes:
        name: How it is reported.
        optimizer: Its theta ends in a `Setting`.
        theta: Weights that are the same for all settings; ``()`` for a baseline.
        lowest: Logarithm to base ten of the first learning rate that is tried.
    """

    name: str
    optimizer: LearnedOptimizer
    theta: Theta
    lowest: float

    def with_settings(self, settings: Setting) -> Any:
        """Theta for each of several settings, along the leading axis."""
        if isinstance(self.optimizer, Baseline):
            return settings
        num = len(settings.learning_rate)

        def repeat(x):
            return np.broadcast_to(x, (num, *np.shape(x)))

        return jax.tree.map(repeat, self.theta), settings


def candidate(name: str) -> Candidate:
    """The baseline `name`, to be tuned."""
    return Candidate(name, Baseline(name), (), KINDS[name].lowest)


def tunable(name: str, optimizer: LearnedOptimizer, theta: Theta) -> Candidate:
    """A learned optimizer with a learning rate, to be tuned over a grid around it."""
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
    total = jnp.asarray(num_steps, jnp.float32)

    def schedule(step):
        progress = jnp.minimum(jnp.asarray(step, jnp.float32) / total, 1.0)
        decay = 1 - setting.cosine * 0.5 * (1 - jnp.cos(jnp.pi * progress))
        return setting.learning_rate * decay

    return schedule


def setting(learning_rate: float, schedule: str = "constant") -> Setting:
    """Returns one setting."""
    cosine = SCHEDULES.index(schedule)
    return Setting(
        jnp.asarray(learning_rate, jnp.float32), jnp.asarray(cosine, jnp.float32)
    )


def first_rates(candidate: Candidate) -> Float[np.ndarray, " rates"]:
    """Learning rates that tuning begins with."""
    return _rates(candidate.lowest)


def further_rates(
    rates: Float[np.ndarray, " rates"], *, above: bool
) -> Float[np.ndarray, " more"]:
    """Returns as many again, next to `rates` on one side."""
    lowest = np.log10(rates[0])
    span = (len(rates) if above else -NUM_RATES) / RATES_PER_DECADE
    return _rates(lowest + span)


def _rates(lowest: float) -> Float[np.ndarray, " rates"]:
    return 10 ** (lowest + np.arange(NUM_RATES) / RATES_PER_DECADE)
