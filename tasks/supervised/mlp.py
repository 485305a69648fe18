"""Multilayer perceptrons for classification and regression."""

from dataclasses import dataclass

import flax.linen as nn
from jaxtyping import Array, Float
from typing_extensions import override

from tasks.supervised.base import Activation, Supervised


class Network(nn.Module):
    """Dense layers on flattened inputs."""

    widths: tuple[int, ...]
    num_outputs: int
    activation: Activation

    @override
    @nn.compact
    def __call__(self, x: Float[Array, "n ..."]) -> Float[Array, "n outputs"]:
        x = x.reshape(len(x), -1)
        for width in self.widths:
            x = getattr(nn, self.activation)(nn.Dense(width)(x))
        return nn.Dense(self.num_outputs)(x)


@dataclass(frozen=True)
class MLP(Supervised):
    """Multilayer perceptron with hidden layers of equal width."""

    width: int = 32
    """Units in each hidden layer."""
    depth: int = 2
    """Number of hidden layers."""
    activation: Activation = "relu"
    """Nonlinearity of the hidden layers."""

    @property
    @override
    def network(self) -> nn.Module:
        return Network((self.width,) * self.depth, self.num_outputs, self.activation)
