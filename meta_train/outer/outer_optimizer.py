"""Outer optimizer of theta: an optax chain with the defaults of the PES paper."""

from dataclasses import dataclass
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import optax


@dataclass(frozen=True)
class OuterAdam:
    """Adam with elementwise gradient clipping."""

    learning_rate: float = 1e-3
    """Peak learning rate of theta."""
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    """Decay of the learning rate, from its peak to zero at the end of the run."""
    num_warmup_steps: int = 0
    """Outer updates of linear learning rate warmup from zero; 0: no warmup."""
    clip: float = 3.0
    """Elementwise gradient clipping threshold, 3 as in the PES paper. Clipped entries
    are biased."""
    b1: float = 0.9
    """Decay rate of the first moment."""
    b2: float = 0.999
    """Decay rate of the second moment."""
    weight_decay: float = 0.0
    """Decoupled weight decay toward the initial theta, as a prior; 0: none."""

    def __post_init__(self):
        if not self.learning_rate > 0 or not self.clip > 0:
            raise ValueError(
                "`learning_rate` and `clip` must be positive; got "
                f"learning_rate={self.learning_rate}, clip={self.clip}. "
                "Try learning_rate=0.001, clip=3."
            )
        if not 0 <= self.weight_decay < float("inf"):
            raise ValueError(
                "`weight_decay` must be finite and not negative; got "
                f"{self.weight_decay}. Try 0.01."
            )
        if not 0 <= self.b1 < 1 or not 0 <= self.b2 < 1 or self.num_warmup_steps < 0:
            raise ValueError(
                "`b1` and `b2` must lie in [0, 1) and `num_warmup_steps` must not be "
                f"negative; got b1={self.b1}, b2={self.b2}, "
                f"num_warmup_steps={self.num_warmup_steps}. Try b1=0.9, b2=0.999."
            )

    def as_optax(self, num_outer_steps: int) -> optax.GradientTransformation:
        """Build the optax transformation for a run of `num_outer_steps` updates."""
        num_decay_steps = max(num_outer_steps - self.num_warmup_steps, 1)
        decay = {
            "constant": lambda step: self.learning_rate,
            "linear": optax.linear_schedule(self.learning_rate, 0.0, num_decay_steps),
            "cosine": optax.cosine_decay_schedule(self.learning_rate, num_decay_steps),
        }[self.schedule]
        learning_rate = decay
        if self.num_warmup_steps:
            rise = optax.linear_schedule(0.0, self.learning_rate, self.num_warmup_steps)
            learning_rate = optax.join_schedules([rise, decay], [self.num_warmup_steps])
        return optax.chain(
            optax.clip(self.clip),
            optax.scale_by_adam(b1=self.b1, b2=self.b2),
            *([_decay_to_init(self.weight_decay)] if self.weight_decay else []),
            optax.scale_by_learning_rate(learning_rate),
        )


class _InitialParams(NamedTuple):
    """State of `_decay_to_init`: the initial parameters."""

    params: optax.Params


def _decay_to_init(weight_decay: float) -> optax.GradientTransformation:
    """Add ``weight_decay * (params - initial_params)`` to the updates."""

    def init(params):
        return _InitialParams(jax.tree.map(jnp.copy, params))

    def update(updates, state, params=None):
        def decayed(update, param, initial):
            return update + weight_decay * (param - initial)

        return jax.tree.map(decayed, updates, params, state.params), state

    return optax.GradientTransformation(init, update)
