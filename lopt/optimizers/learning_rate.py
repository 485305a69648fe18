"""Learning-rate schedules with learned parameters."""

import math
from collections.abc import Mapping
from typing import Literal, TypeAlias, get_args

import jax.numpy as jnp
from jaxtyping import Array, Float

from lopt.errors import UserError

Schedule: TypeAlias = Literal[
    "constant", "linear", "exponential", "power", "log-power", "cosine"
]


def check_schedule(
    schedule: str, initial_lr: float, initial_power: float = 0.0
) -> None:
    """Raise a `UserError` for an unknown `schedule` or invalid initial values."""
    if schedule not in get_args(Schedule):
        known = ", ".join(get_args(Schedule))
        raise UserError(f"`schedule` must be one of {known}; got {schedule!r}.")
    if not 0 < initial_lr < math.inf:
        raise UserError(f"`initial_lr` must be positive; got {initial_lr}. Try 0.01.")
    lowest = 0.0 if schedule == "log-power" else -math.inf
    if not lowest < initial_power < math.inf:
        raise UserError(
            "`initial_power` must be finite, and positive for the schedule log-power; "
            f"got {initial_power}. Try 0.1."
        )


def init_schedule(
    schedule: Schedule, initial_lr: float, initial_power: float = 0.0
) -> dict[str, float]:
    """Initialize the parameters of a schedule, by name.

    The initial schedule is constant, unless it is a power schedule with
    `initial_power`.
    """
    numbers = {"log_lr": math.log(initial_lr)}
    if schedule == "power":
        numbers["power"] = initial_power
    elif schedule == "log-power":
        numbers["log_power"] = math.log(initial_power)
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
        log-power:    a / (1 + p)^exp(log_power)
        cosine:       linear, with p replaced by (1 - cos(pi * p)) / 2

    Args:
        schedule: Name of the schedule.
        numbers: Parameters by name, from `init_schedule`; `log_lr` is ``log(a)`` and
            `log_last_lr` is ``log(b)``.
        progress: Fraction of the run completed, in [0, 1]. For the power schedules it
            may be ``t / Q`` with a fixed constant Q instead.

    Returns:
        The learning rate.
    """
    first = numbers["log_lr"]
    if schedule == "constant":
        return jnp.exp(first)
    if schedule == "power":
        return jnp.exp(first - numbers["power"] * jnp.log1p(progress))
    if schedule == "log-power":
        return jnp.exp(first - jnp.exp(numbers["log_power"]) * jnp.log1p(progress))
    last = numbers["log_last_lr"]
    if schedule == "exponential":
        return jnp.exp((1 - progress) * first + progress * last)
    share = progress if schedule == "linear" else (1 - jnp.cos(jnp.pi * progress)) / 2
    return (1 - share) * jnp.exp(first) + share * jnp.exp(last)
