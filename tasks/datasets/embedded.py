"""Datasets that need no download: bundled with scikit-learn, or generated."""

import importlib
from dataclasses import dataclass

import numpy as np
from typing_extensions import override

from tasks.base import Split
from tasks.datasets.base import Dataset, StoredSplit, split_rows


@dataclass(frozen=True)
class Embedded(Dataset):
    """Dataset bundled with scikit-learn.

    Pixels are scaled to [0, 1]. Table columns and regression targets are standardized.
    """

    @override
    def read(self, split: Split) -> StoredSplit:
        module = importlib.import_module("sklearn.datasets")
        bunch = getattr(module, f"load_{self.name.replace('-', '_')}")()
        if self.name == "digits":
            center, scale = np.zeros(1), np.full(1, 16.0)
            bunch.data = bunch.images[..., None]
            return stored(bunch.data, bunch.target, center, scale, split, "int32")
        return standardised(bunch.data, bunch.target, split, bool(self.num_classes))


@dataclass(frozen=True)
class Friedman(Dataset):
    """Synthetic regression problem Friedman #1 (Friedman, 1991, eq. 34).

    ``y = 10 sin(pi x0 x1) + 20 (x2 - 0.5)^2 + 10 x3 + 5 x4 + noise`` with inputs
    uniform on [0, 1] and standard normal noise. The last five of the ten inputs are
    irrelevant. Inputs and targets are standardized.
    """

    @override
    def read(self, split: Split) -> StoredSplit:
        generator = np.random.default_rng(0)
        # `split_rows` uses 80 % of the rows for training.
        num = self.num_train + self.num_train // 4
        x = generator.uniform(size=(num, *self.shape))
        y = 10 * np.sin(np.pi * x[:, 0] * x[:, 1]) + 20 * (x[:, 2] - 0.5) ** 2
        y += 10 * x[:, 3] + 5 * x[:, 4] + generator.normal(size=num)
        return standardised(x, y, split, classes=False)


def standardised(
    inputs: np.ndarray, targets: np.ndarray, split: Split, classes: bool
) -> StoredSplit:
    """Standardize a split of a table by the statistics of its training split.

    Args:
        inputs: All rows of the table, of shape ``(n, columns)``.
        targets: Integer classes or regression targets, of shape ``(n,)``.
        split: The split to select.
        classes: Whether `targets` are classes, which are not standardized.
    """
    train = split_rows(len(targets), "train")
    center, scale = inputs[train].mean(0), inputs[train].std(0)
    scale = np.where(scale > 0, scale, 1.0)
    if not classes:
        targets = (targets - targets[train].mean()) / targets[train].std()
    dtype = "int32" if classes else "float32"
    return stored(inputs, targets, center, scale, split, dtype)


def stored(inputs, targets, center, scale, split: Split, dtype: str) -> StoredSplit:
    """Select the rows of a split, cast them and transfer them to the device."""
    rows = split_rows(len(targets), split)
    labels = targets[rows].astype(dtype)
    return StoredSplit.of(inputs[rows].astype(np.float32), labels, center, scale)
