"""What a dataset is: whole splits as arrays on the device, batches drawn by key."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray, Shaped

from tasks.base import Split


class Examples(NamedTuple):
    """A batch: inputs with zero mean and unit spread, and class labels or targets."""

    inputs: Float[Array, "n ..."]
    labels: Int[Array, " n"] | Float[Array, " n"]


class Stored(NamedTuple):
    """A split as it lies on the device, bytes as bytes.

    Attributes:
        inputs: One row an example.
        labels: Classes, or targets if it is a regression.
        center: What is subtracted from the inputs of a batch.
        spread: What they are then divided by.
    """

    inputs: Shaped[Array, "n ..."]
    labels: Shaped[Array, " n"]
    center: Float[Array, "..."]
    spread: Float[Array, "..."]

    @classmethod
    def of(cls, inputs: Any, labels: Any, center: Any, spread: Any) -> "Stored":
        """Puts arrays of the host onto the device."""
        like = lambda x: np.asarray(x, np.float32).reshape(
            (1,) * (inputs.ndim - np.ndim(x)) + np.shape(x)
        )
        arrays = (inputs, labels, like(center), like(spread))
        return cls(*map(jnp.asarray, arrays))

    def take(self, rows: Int[Array, " batch"]) -> Examples:
        """Returns some of the examples, cast and normalised."""
        # As vectors: a CPU picks rows of images fifteen times as slowly.
        vectors = self.inputs.reshape(self.inputs.shape[0], -1)[rows]
        shape = (*rows.shape, *self.inputs.shape[1:])
        inputs = vectors.reshape(shape).astype(jnp.float32)
        return Examples((inputs - self.center) / self.spread, self.labels[rows])

    def whole(self) -> Examples:
        """Returns all of them."""
        return self.take(jnp.arange(len(self.labels)))

    def sample(self, batch_size: int, key: PRNGKeyArray) -> Examples:
        """Draws a batch with replacement."""
        return self.take(draw_indices(key, (batch_size,), len(self.labels)))


@dataclass(frozen=True)
class Dataset(ABC):
    """A dataset by its name: its shape is known before it is loaded."""

    name: str
    shape: tuple[int, ...]
    """Of one input."""
    num_classes: int
    """0 for a regression."""
    num_train: int
    """Examples to train on."""
    about: str
    """In a few words."""

    @abstractmethod
    def read(self, split: Split) -> Stored:
        """Reads a split onto the device."""

    def like(self) -> "Stored":
        """Returns the shapes of the training split, without loading it."""
        is_images = len(self.shape) == 3
        inner = (1, 1, 1, self.shape[-1]) if is_images else (1, *self.shape)
        shape = lambda dtype, *dims: jax.ShapeDtypeStruct(dims, dtype)
        num, labels = self.num_train, "int32" if self.num_classes else "float32"
        arrays: Any = (
            shape("float32", num, *self.shape),
            shape(labels, num),
            *(shape("float32", *inner) for _ in range(2)),
        )
        return Stored(*arrays)

    def check_prepared(self) -> None:
        """Raises unless all that it needs is on disk; quick."""
        return  # it needs nothing


def draw_indices(
    key: PRNGKeyArray, shape: tuple[int, ...], num: int | Int[Array, "..."]
) -> Int[Array, "..."]:
    """Draws indices below `num`, with replacement.

    By one draw of 32 bits: some are likelier than others by `num` in 4e9. What
    `jax.random.randint` draws to avoid that took half the time of a small step.
    """
    bits = jax.random.bits(key, shape, jnp.uint32)
    return (bits % jnp.asarray(num, jnp.uint32)).astype(jnp.int32)


def split_rows(num: int, split: Split) -> np.ndarray:
    """Returns the rows of a split of a table that comes without any: 80, 10, 10 %.

    The same in every process, and mixed.
    """
    order = np.random.default_rng(0).permutation(num)
    first, second = num // 10, num // 5
    return {
        "test": order[:first],
        "validation": order[first:second],
        "train": order[second:],
    }[split]
