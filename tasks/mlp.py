"""Classification with a multilayer perceptron."""

from dataclasses import dataclass
from typing import Literal, TypeAlias, cast

import flax.linen as nn
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, PRNGKeyArray
from typing_extensions import override

from tasks import datasets
from tasks.base import Loss, Params, Task
from tasks.datasets import DatasetName, Examples

Activation: TypeAlias = Literal["relu", "tanh", "gelu", "silu"]


class _Network(nn.Module):
    widths: tuple[int, ...]
    num_classes: int
    activation: Activation

    @override
    @nn.compact
    def __call__(self, x: Float[Array, "n i"]) -> Float[Array, "n c"]:
        for width in self.widths:
            x = getattr(nn, self.activation)(nn.Dense(width)(x))
        return nn.Dense(self.num_classes)(x)


@dataclass(frozen=True)
class MLPClassification(Task):
    """Softmax cross-entropy of an MLP on a dataset."""

    dataset: DatasetName = "digits"
    """What is classified; all of these come with scikit-learn, nothing downloads."""
    width: int = 32
    """Units in each hidden layer."""
    depth: int = 2
    """Number of hidden layers."""
    activation: Activation = "relu"
    """Nonlinearity between the layers."""
    batch_size: int = 64
    """Examples in a batch, drawn with replacement."""

    def __post_init__(self):
        if min(self.width, self.depth, self.batch_size) < 1:
            raise ValueError(
                "`width`, `depth` and `batch_size` must be at least 1; got "
                f"width={self.width}, depth={self.depth}, "
                f"batch_size={self.batch_size}."
            )

    @property
    def _network(self) -> _Network:
        _, num_classes = datasets.shape(self.dataset)
        return _Network((self.width,) * self.depth, num_classes, self.activation)

    @override
    def load(self) -> Examples:
        return datasets.load(self.dataset, "train")

    @override
    def init_params(self, key: PRNGKeyArray) -> Params:
        num_inputs, _ = datasets.shape(self.dataset)
        return self._network.init(key, jnp.zeros((1, num_inputs)))

    @override
    def sample_batch(self, data: Examples, key: PRNGKeyArray) -> Examples:
        return datasets.sample(data, self.batch_size, key)

    @override
    def loss(self, params: Params, batch: Examples) -> Loss:
        logits = cast(Array, self._network.apply(params, batch.inputs))
        losses = optax.softmax_cross_entropy_with_integer_labels(logits, batch.labels)
        return losses.mean()
