"""Optimizers of theta: optax chains of clipping, a direction and a learning rate.

To register one, add it to `OUTER_OPTIMIZERS`.
"""

import hashlib
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import optax
from typing_extensions import override

from lopt.errors import UserError
from tasks.base import Theta


@dataclass(frozen=True)
class OuterOptimizer(ABC):
    """Optimizer of theta, as recorded in the configuration of a run."""

    @abstractmethod
    def as_optax(self, num_outer_steps: int) -> optax.GradientTransformation:
        """Build the optax transformation for a run of `num_outer_steps` updates."""


@dataclass(frozen=True)
class OuterOptax(OuterOptimizer):
    """Optax transformation passed to `meta_train` in Python.

    A configuration cannot contain functions. It records a hash of the program of the
    transformation, so that a run is only resumed with the same one.
    """

    sha256: str
    """Hash of the lowered program of `update`."""

    @classmethod
    def of(cls, tx: optax.GradientTransformation, theta: Theta) -> "OuterOptax":
        """Describe a transformation for outer parameters like `theta`."""
        program = jax.jit(tx.update).lower(theta, tx.init(theta), theta).as_text()
        return cls(hashlib.sha256(program.encode()).hexdigest())

    @override
    def as_optax(self, num_outer_steps: int) -> optax.GradientTransformation:
        raise UserError(
            "this run updates theta by an optax transformation of a Python program, "
            "which its configuration does not contain. Try "
            "meta_train(config, outer_optimizer=...) in that program."
        )


@dataclass(frozen=True)
class ScheduledOuterOptimizer(OuterOptimizer):
    """Base class of optimizers of theta with clipping and a scheduled learning rate."""

    learning_rate: float = 1e-3
    """Peak learning rate of theta."""
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    """Decay of the learning rate, from its peak to zero at the end of the run."""
    num_warmup_steps: int = 0
    """Outer updates of linear learning rate warmup from zero; 0: no warmup."""
    clip: float | None = 3.0
    """Gradient clipping threshold, 3 as in the PES paper; None: no clipping. Clipped
    gradients are biased."""
    clip_by: Literal["entry", "norm"] = "entry"
    """Clip every entry of the gradient, as in the PES paper, or its global norm."""

    def __post_init__(self):
        if not self.learning_rate > 0 or not (self.clip is None or self.clip > 0):
            raise ValueError(
                "`learning_rate` and `clip` must be positive; got "
                f"learning_rate={self.learning_rate}, clip={self.clip}. "
                "Try learning_rate=0.001, clip=3."
            )
        if self.num_warmup_steps < 0:
            raise ValueError(
                "`num_warmup_steps` must not be negative; got "
                f"{self.num_warmup_steps}. Try 0."
            )
        for name in ("b1", "b2", "momentum"):
            if not 0 <= getattr(self, name, 0.0) < 1:
                raise ValueError(
                    f"`{name}` must lie in [0, 1); got {getattr(self, name)}. Try 0.9."
                )
        weight_decay = getattr(self, "weight_decay", 0.0)
        if not 0 <= weight_decay < float("inf"):
            raise ValueError(
                "`weight_decay` must be finite and not negative; got "
                f"{weight_decay}. Try 0.01."
            )

    @abstractmethod
    def direction(self) -> optax.GradientTransformation:
        """Build the transformation between the clipping and the learning rate."""

    @override
    def as_optax(self, num_outer_steps: int) -> optax.GradientTransformation:
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
        clip = optax.identity()
        if self.clip is not None:
            by = {"entry": optax.clip, "norm": optax.clip_by_global_norm}
            clip = by[self.clip_by](self.clip)
        return optax.chain(
            clip, self.direction(), optax.scale_by_learning_rate(learning_rate)
        )


@dataclass(frozen=True)
class OuterAdam(ScheduledOuterOptimizer):
    """Adam, with weight decay toward the initial theta."""

    b1: float = 0.9
    """Decay rate of the first moment."""
    b2: float = 0.999
    """Decay rate of the second moment."""
    weight_decay: float = 0.0
    """Decoupled weight decay toward the initial theta, as a prior; 0: none."""

    @override
    def direction(self):
        adam = optax.scale_by_adam(b1=self.b1, b2=self.b2)
        if not self.weight_decay:
            return adam
        return optax.chain(adam, _decay_to_init(self.weight_decay))


@dataclass(frozen=True)
class OuterSGD(ScheduledOuterOptimizer):
    """SGD, by default without momentum and without clipping."""

    clip: float | None = None
    """Gradient clipping threshold; None: no clipping. Clipped gradients are biased."""
    momentum: float = 0.0
    """Decay rate of the momentum; 0: none."""
    nesterov: bool = False
    """Whether to use Nesterov momentum."""

    @override
    def direction(self):
        if not self.momentum:
            return optax.identity()
        return optax.trace(self.momentum, nesterov=self.nesterov)


@dataclass(frozen=True)
class OuterAdamW(ScheduledOuterOptimizer):
    """AdamW: Adam with decoupled weight decay toward zero."""

    b1: float = 0.9
    """Decay rate of the first moment."""
    b2: float = 0.999
    """Decay rate of the second moment."""
    weight_decay: float = 1e-4
    """Decoupled weight decay toward zero."""

    @override
    def direction(self):
        adam = optax.scale_by_adam(b1=self.b1, b2=self.b2)
        return optax.chain(adam, optax.add_decayed_weights(self.weight_decay))


@dataclass(frozen=True)
class OuterLamb(OuterAdamW):
    """LAMB: AdamW whose update of every tensor is scaled by the norm of the tensor."""

    @override
    def direction(self):
        return optax.chain(super().direction(), optax.scale_by_trust_ratio())


OUTER_OPTIMIZERS: dict[str, type[ScheduledOuterOptimizer]] = {
    kind.__name__: kind for kind in (OuterAdam, OuterSGD, OuterAdamW, OuterLamb)
}


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
