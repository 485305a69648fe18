"""SGD with a learned schedule: the shortest example of a learned optimizer."""

import math
from dataclasses import dataclass
from typing import ClassVar

import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray
from typing_extensions import override

from lopt.tensors import Clock, PerTensorOptimizer, Tensor


@dataclass(frozen=True)
class ScheduledSGD(PerTensorOptimizer):
    """SGD with a learning rate that moves linearly between two learned values.

    The smallest learned optimizer: ``theta`` is the logarithm of the first and of the
    last learning rate, as in the PES paper's toy problem.
    """

    reads_params: ClassVar[bool] = False
    initial_lr: float = 0.01
    """Learning rate, first and last, before meta-training."""

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
    def update_tensor(self, theta: Float[Array, "2"], tensor: Tensor, clock: Clock):
        first, last = jnp.exp(theta)
        rate = (1 - clock.progress) * first + clock.progress * last
        return -rate * tensor.grad, ()
