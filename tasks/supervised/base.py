"""Base class of supervised tasks; subclasses define a network."""

from abc import abstractmethod
from dataclasses import dataclass, field
from typing import Literal, TypeAlias, cast

import flax.linen as nn
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, PRNGKeyArray
from typing_extensions import override

from tasks import datasets
from tasks.base import Constants, Input, Loss, Params, Problem, Split, Task
from tasks.datasets import Examples, StoredSplit

Activation: TypeAlias = Literal["relu", "tanh", "gelu", "silu"]


@dataclass(frozen=True)
class Supervised(Task):
    """Network trained on a dataset.

    The loss is the mean cross-entropy for classification, and half the mean squared
    error for regression, plus an L2 penalty.
    """

    dataset: str = "digits"
    """Name of a dataset (`lopt data list`), or path of a CSV file."""
    batch_size: int = 64
    """Number of examples per batch, drawn with replacement."""
    l2: float = 0.0
    """L2 penalty coefficient: the loss includes ``0.5 * l2 * ||params||^2``."""
    num_examples: int | None = field(default=None, kw_only=True)
    """Number of training examples to use, the first of the dataset; None: all."""

    def __post_init__(self):
        spec = datasets.get(self.dataset)
        for name in ("width", "depth"):
            if getattr(self, name, 1) < 1:
                raise ValueError(
                    f"`{name}` must be at least 1; got {getattr(self, name)}. Try 2."
                )
        if not 1 <= self.batch_size <= spec.num_train:
            raise ValueError(
                f"`batch_size` must lie between 1 and the {spec.num_train} training "
                f"examples of {self.dataset}; got {self.batch_size}. "
                f"Try {min(64, spec.num_train)}."
            )
        if self.num_examples is not None and not (
            1 <= self.num_examples <= spec.num_train
        ):
            raise ValueError(
                f"`num_examples` must lie between 1 and the {spec.num_train} training "
                f"examples of {self.dataset}; got {self.num_examples}."
            )
        if not self.l2 >= 0:
            raise ValueError(f"`l2` must not be negative; got {self.l2}. Try 1e-4.")

    @property
    @abstractmethod
    def network(self) -> nn.Module:
        """Network that maps ``(n, *shape)`` inputs to ``(n, num_outputs)`` outputs."""

    @property
    def num_outputs(self) -> int:
        """Number of classes, or 1 for regression."""
        return datasets.get(self.dataset).num_classes or 1

    @override
    def load(self, split: Split = "train") -> StoredSplit:
        stored = datasets.load(self.dataset, split)
        if split != "train" or self.num_examples is None:
            return stored
        inputs, labels = (x[: self.num_examples] for x in stored[:2])
        return stored._replace(inputs=inputs, labels=labels)

    @override
    def init_params(self, key: PRNGKeyArray) -> Params:
        return self.network.init(key, jnp.zeros((1, *datasets.get(self.dataset).shape)))

    @override
    def sample_batch(self, data: StoredSplit, key: PRNGKeyArray) -> Input:
        return data.sample(self.batch_size, key)

    @override
    def loss(self, params: Params, batch: Input) -> Loss:
        outputs = self.outputs(params, batch)
        if datasets.get(self.dataset).num_classes:
            loss = optax.softmax_cross_entropy_with_integer_labels(
                outputs, batch.labels
            ).mean()
        else:
            loss = 0.5 * jnp.mean((outputs[:, 0] - batch.labels) ** 2)
        if self.l2:
            loss += 0.5 * self.l2 * optax.tree.norm(params["params"], squared=True)
        return loss

    def error(self, params: Params, batch: Input) -> Loss:
        """Compute the share of misclassified examples."""
        wrong = self.outputs(params, batch).argmax(axis=-1) != batch.labels
        return wrong.astype(jnp.float32).mean()

    def outputs(self, params: Params, batch: Examples) -> Float[Array, "n outputs"]:
        """Apply the network to the inputs of a batch."""
        return cast(Array, self.network.apply(params, batch.inputs))

    @override
    def problem(self, constants: Constants) -> Problem:
        has_classes = datasets.get(self.dataset).num_classes > 0
        error = self.error if has_classes else None
        return super().problem(constants)._replace(error=error)
