"""Learning-rate schedules with learned parameters."""

import math
from collections.abc import Mapping
from typing import Literal, TypeAlias, get_args

import jax.numpy as jnp
from jaxtyping import Array, Float

from lopt.errors import UserError

Schedule: TypeAlias = Literal["constant", "linear", "exponential", "power", "cosine"]


def check_schedule(schedule: str, initial_lr: float) -> None:
    """Raise a `UserError` for an unknown `schedule` or an invalid `initial_lr`."""
    if schedule not in get_args(Schedule):
        known = ", ".join(get_args(Schedule))
        raise UserError(f"`schedule` must be one of {known}; got {schedule!r}.")
    if not 0 < initial_lr < math.inf:
        raise UserError(f"`initial_lr` must be positive; got {initial_lr}. Try 0.01.")


def init_schedule(schedule: Schedule, initial_lr: float) -> dict[str, float]:
    """Initialize the parameters of a schedule, by name, to a constant schedule."""
    numbers = {"log_lr": math.log(initial_lr)}
    if schedule == "power":
        numbers["power"] = 0.0
    elif schedule != "constant":
        numbers["log_last_lr"] = math.log(initial_lr)
    return numbers


def learning_rate(
    schedule: Schedule,
    numbers: Mapping[str, Float[Array, ""]],
    progress: Float[Array, ""],
) -> Float[Array, ""]:
    """Evaluate a schedule.

    With ``a`` the initial rate, ``b`` the final rate and ``p`` the progress::

        constant:     a
        linear:       (1 - p) * a + p * b
        exponential:  a^(1 - p) * b^p
        power:        a / (1 + p)^power
        cosine:       linear, with p replaced by (1 - cos(pi * p)) / 2

    Args:
        schedule: Name of the schedule.
        numbers: Parameters by name, from `init_schedule`; `log_lr` is ``log(a)`` and
            `log_last_lr` is ``log(b)``.
        progress: Fraction of the run completed, in [0, 1].

    Returns:
        The learning rate.
    """
    first = numbers["log_lr"]
    if schedule == "constant":
        return jnp.exp(first)
    if schedule == "power":
        # The PES paper's lr / (1 + t / Q)^power, where Q is the length of the run.
        return jnp.exp(first - numbers["power"] * jnp.log1p(progress))
    last = numbers["log_last_lr"]
    if schedule == "exponential":
        return jnp.exp((1 - progress) * first + progress * last)
    share = progress if schedule == "linear" else (1 - jnp.cos(jnp.pi * progress)) / 2
    return (1 - share) * jnp.exp(first) + share * jnp.exp(last)
