"""Learning rates as functions of the progress of a run, their numbers learned."""

import math
from collections.abc import Mapping
from typing import Literal, TypeAlias, get_args

import jax.numpy as jnp
from jaxtyping import Array, Float

from lopt.errors import UserError

Schedule: TypeAlias = Literal["constant", "linear", "exponential", "power", "cosine"]


def check_schedule(schedule: str, initial_lr: float) -> None:
    """Raises unless there is such a schedule, and it can start at that rate."""
    if schedule not in get_args(Schedule):
        known = ", ".join(get_args(Schedule))
        raise UserError(f"`schedule` must be one of {known}; got {schedule!r}.")
    if not 0 < initial_lr < math.inf:
        raise UserError(f"`initial_lr` must be positive; got {initial_lr}. Try 0.01.")


def init_schedule(schedule: Schedule, initial_lr: float) -> dict[str, float]:
    """Returns the numbers to learn, by name: at first every schedule is constant."""
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
    """Returns the learning rate when a share `progress` of the run is over."""
    first = numbers["log_lr"]
    if schedule == "constant":
        return jnp.exp(first)
    if schedule == "power":
        # The PES paper's lr / (1 + t / Q)^power, with its Q: the length of the run.
        return jnp.exp(first - numbers["power"] * jnp.log1p(progress))
    last = numbers["log_last_lr"]
    if schedule == "exponential":
        return jnp.exp((1 - progress) * first + progress * last)
    share = progress if schedule == "linear" else (1 - jnp.cos(jnp.pi * progress)) / 2
    return (1 - share) * jnp.exp(first) + share * jnp.exp(last)
