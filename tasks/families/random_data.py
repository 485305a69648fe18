"""Families of supervised tasks with random labels, classes or datasets."""

from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int, PRNGKeyArray
from typing_extensions import override

from tasks import datasets
from tasks.base import Constants, Problem, Split
from tasks.datasets.base import StoredSplit, draw_indices
from tasks.families.augmentation import Augmentation
from tasks.supervised.base import Supervised


@dataclass(frozen=True)
class PermutedLabels(Augmentation):
    """Permute the class labels at random in every episode."""

    task: Supervised
    """The wrapped classification task."""

    @override
    def sample(self, key: PRNGKeyArray) -> Constants:
        return jax.random.permutation(key, self.task.num_outputs)

    @override
    def augment(self, problem: Problem, constants: Constants) -> Problem:
        def sample_batch(data, key):
            batch = problem.sample_batch(data, key)
            return batch._replace(labels=constants[batch.labels])

        return problem._replace(sample_batch=sample_batch)


class ByClass(NamedTuple):
    """Dataset split with its rows indexed by class.

    Attributes:
        stored: The split.
        order: Row indices, sorted by class.
        first: Position in `order` of the first row of each class.
        size: Number of rows of each class.
    """

    stored: StoredSplit
    order: Int[Array, " n"]
    first: Int[Array, " classes"]
    size: Int[Array, " classes"]


@dataclass(frozen=True)
class ClassSubset(Augmentation):
    """Restrict the dataset to a random subset of its classes in every episode.

    Batches are class-balanced in expectation. The selected classes are relabeled from 0
    in random order. The network keeps one output for each class of the dataset.
    """

    task: Supervised
    """The wrapped classification task."""
    num_classes: int = 5
    """Number of classes in the subset."""

    def __post_init__(self):
        if not 2 <= self.num_classes <= self.task.num_outputs:
            raise ValueError(
                f"`num_classes` must lie between 2 and {self.task.num_outputs}, the "
                f"classes of {self.task.dataset}; got {self.num_classes}. Try 2."
            )

    @override
    def load(self, split: Split = "train") -> ByClass:
        stored = self.task.load(split)
        labels = np.asarray(stored.labels)
        count = np.bincount(labels, minlength=self.task.num_outputs)
        indices = (np.argsort(labels, kind="stable"), np.cumsum(count) - count, count)
        return ByClass(stored, *(jnp.asarray(x, jnp.int32) for x in indices))

    @override
    def sample(self, key: PRNGKeyArray) -> Constants:
        return jax.random.permutation(key, self.task.num_outputs)[: self.num_classes]

    @override
    def augment(self, problem: Problem, constants: Constants) -> Problem:
        def sample_batch(data, key):
            key_class, key_row = jax.random.split(key)
            shape = (self.task.batch_size,)
            labels = draw_indices(key_class, shape, self.num_classes)
            classes = constants[labels]
            which = draw_indices(key_row, shape, data.size[classes])
            rows = data.order[data.first[classes] + which]
            return data.stored.take(rows)._replace(labels=labels)

        return problem._replace(sample_batch=sample_batch)


@dataclass(frozen=True)
class AnyDataset(Augmentation):
    """Draw one of several datasets of equal shape in every episode."""

    task: Supervised
    """The wrapped task, which defines the network and the batch size."""
    datasets: tuple[str, ...] = ("mnist", "fashion-mnist")
    """Names of the datasets. Each is truncated to the size of the smallest."""

    def __post_init__(self):
        shapes = {
            (spec.shape, spec.num_classes)
            for spec in map(datasets.get, (self.task.dataset, *self.datasets))
        }
        if len(shapes) != 1:
            raise ValueError(
                "`datasets` must have the shape and classes of the task's own; got "
                f"{', '.join(self.datasets)} for {self.task.dataset}."
            )

    @override
    def load(self, split: Split = "train") -> StoredSplit:
        """Load all datasets, concatenated, with `center` and `scale` stacked."""
        parts = [datasets.load(name, split) for name in self.datasets]
        num = min(len(part.labels) for part in parts)

        def join(*xs):
            return jnp.concatenate([x[:num] for x in xs])

        first, *rest = parts
        inputs = join(first.inputs, *(part.inputs for part in rest))
        labels = join(first.labels, *(part.labels for part in rest))
        center, scale = (
            jnp.stack([getattr(part, name) for part in parts])
            for name in ("center", "scale")
        )
        return StoredSplit(inputs, labels, center, scale)

    @override
    def sample(self, key: PRNGKeyArray) -> Constants:
        return jax.random.randint(key, (), 0, len(self.datasets), jnp.int32)

    @override
    def augment(self, problem: Problem, constants: Constants) -> Problem:
        def sample_batch(data, key):
            num = len(data.labels) // len(self.datasets)
            rows = draw_indices(key, (self.task.batch_size,), num)
            own = data._replace(
                center=data.center[constants], scale=data.scale[constants]
            )
            return own.take(constants * num + rows)

        return problem._replace(sample_batch=sample_batch)
