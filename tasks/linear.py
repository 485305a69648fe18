"""Linear regression, and logistic regression where there are classes."""

from dataclasses import dataclass

import flax.linen as nn
from jaxtyping import Array, Float
from typing_extensions import override

from tasks.supervised import Supervised


class _Network(nn.Module):
    num_outputs: int

    @override
    @nn.compact
    def __call__(self, x: Float[Array, "n ..."]) -> Float[Array, "n outputs"]:
        zeros = nn.initializers.zeros  # convex: where it starts does not matter
        return nn.Dense(self.num_outputs, kernel_init=zeros)(x.reshape(len(x), -1))


@dataclass(frozen=True)
class Linear(Supervised):
    """One dense layer: convex, with L2 strictly so."""

    l2: float = 1e-3
    """Half the squared length of the parameters is added to the loss so many times."""

    @property
    @override
    def network(self) -> _Network:
        return _Network(self.num_outputs)
