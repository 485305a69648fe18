"""Linear regression and multinomial logistic regression."""

from dataclasses import dataclass

import flax.linen as nn
from jaxtyping import Array, Float
from typing_extensions import override

from tasks.supervised.base import Supervised


class _Network(nn.Module):
    num_outputs: int

    @override
    @nn.compact
    def __call__(self, x: Float[Array, "n ..."]) -> Float[Array, "n outputs"]:
        # The problem is convex, so the initial point does not affect the optimum.
        zeros = nn.initializers.zeros
        return nn.Dense(self.num_outputs, kernel_init=zeros)(x.reshape(len(x), -1))


@dataclass(frozen=True)
class Linear(Supervised):
    """One dense layer: a convex problem, strictly convex if `l2` is positive."""

    l2: float = 1e-3
    """L2 penalty coefficient: the loss includes ``0.5 * l2 * ||params||^2``."""

    @property
    @override
    def network(self) -> _Network:
        return _Network(self.num_outputs)
