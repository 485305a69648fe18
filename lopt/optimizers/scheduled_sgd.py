"""SGD with a learned linear schedule, a minimal example of a learned optimizer."""

import math
from dataclasses import dataclass
from typing import ClassVar

import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray
from typing_extensions import override

from lopt.adapter import LeafInputs, PerTensorOptimizer, StepInfo


@dataclass(frozen=True)
class ScheduledSGD(PerTensorOptimizer):
    """SGD with linear interpolation between two learned learning rates.

    The learning rate at step ``t`` of ``T`` is::

        lr_t = (1 - t/T) * exp(theta[0]) + t/T * exp(theta[1])

    as in the toy problem of the PES paper (Vicol et al., 2021, arXiv:2112.13835).
    """

    reads_params: ClassVar[bool] = False
    clips_gradients: ClassVar[bool] = False
    initial_lr: float = 0.01
    """Initial and final learning rate before meta-training."""

    def __post_init__(self):
        if not self.initial_lr > 0:
            raise ValueError(
                f"`initial_lr` must be positive; got {self.initial_lr}. Try 0.01."
            )

    @override
    def init_theta(self, key: PRNGKeyArray) -> Float[Array, "2"]:
        return jnp.full(2, math.log(self.initial_lr), jnp.float32)

    @override
    def init_tensor(self, param):
        return ()

    @override
    def update_tensor(
        self, theta: Float[Array, "2"], tensor: LeafInputs, info: StepInfo
    ):
        first, last = jnp.exp(theta)
        rate = (1 - info.progress) * first + info.progress * last
        return -rate * tensor.grad, ()
