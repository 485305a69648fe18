"""Image datasets as TFDS stores them, read without TensorFlow."""

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from typing_extensions import override

from tasks import prepared
from tasks.base import Split
from tasks.datasets.base import Dataset, Stored
from tasks.prepared import DataError

_VALIDATION_SHARE = 10  # one in so many of the official training set


@dataclass(frozen=True)
class TfdsImages(Dataset):
    """Pixels stay bytes until they are in a batch, normalised by channel."""

    mean: tuple[float, ...]
    """Of each channel over the training set, of 255."""
    std: tuple[float, ...]
    """The same."""

    @property
    def folder(self) -> Path:
        """Where TFDS keeps it."""
        return prepared.folder(self.name)

    @override
    def check_prepared(self) -> None:
        prepared.check_prepared(self.name)

    @override
    def read(self, split: Split) -> Stored:
        self.check_prepared()
        import tensorflow_datasets as tfds  # two seconds

        official = "test" if split == "test" else "train"
        try:
            builder: Any = tfds.builder_from_directory(str(self.folder))
            source = builder.as_data_source(split=official)
            images, labels = self._decode(source, _rows(split, len(source)))
        except (ValueError, TypeError, RuntimeError, OSError, KeyError) as error:
            raise DataError(
                f"The dataset {self.name!r} in {self.folder} cannot be read: "
                f"{str(error).splitlines()[0][:200]}. Try `lopt data prepare "
                f"{self.name} --again`."
            ) from error
        return Stored.of(images, labels, self.mean, self.std)

    def _decode(self, source: Any, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        def decode(part: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
            records = source.__getitems__(part)
            images = np.stack([record["image"] for record in records])
            return images, np.asarray([r["label"] for r in records], np.int32)

        num_threads = os.cpu_count() or 1
        parts = [part.tolist() for part in np.array_split(rows, 4 * num_threads)]
        with ThreadPoolExecutor(num_threads) as pool:
            images, labels = zip(*pool.map(decode, parts), strict=True)
        whole = np.concatenate(images)
        if whole.shape[1:] != self.shape:
            raise ValueError(f"images must have shape {self.shape}, not {whole.shape}")
        return whole, np.concatenate(labels)


def _rows(split: Split, num: int) -> np.ndarray:
    """Returns a split's rows; those of validation are the last of the training set."""
    end = num - num // _VALIDATION_SHARE
    return {
        "train": np.arange(end),
        "validation": np.arange(end, num),
        "test": np.arange(num),
    }[split]
