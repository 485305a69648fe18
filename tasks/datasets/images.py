"""Image datasets in TFDS format, read without TensorFlow."""

import json
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
from tasks.datasets.base import Dataset, StoredSplit
from tasks.prepared import DataError

# One tenth of the official training set is used for validation.
_VALIDATION_SHARE = 10
_FEATURES = "tensorflow_datasets.core.features."


@dataclass(frozen=True)
class TfdsImages(Dataset):
    """Image classification dataset prepared by TFDS.

    Pixels are stored as uint8 and normalized per channel when a batch is drawn.
    """

    mean: tuple[float, ...]
    """Mean of each channel over the training set, for pixels in [0, 255]."""
    std: tuple[float, ...]
    """Standard deviation of each channel, for pixels in [0, 255]."""

    @property
    def folder(self) -> Path:
        """Directory of the dataset in TFDS layout."""
        return prepared.folder(self.name)

    @override
    def check_prepared(self) -> None:
        prepared.check_prepared(self.name)

    @override
    def read(self, split: Split) -> StoredSplit:
        self.check_prepared()
        import tensorflow_datasets as tfds  # Lazy: the import takes two seconds.

        official = "test" if split == "test" else "train"
        try:
            _check_features(self.folder / "features.json")
            builder: Any = tfds.builder_from_directory(str(self.folder))
            source = builder.as_data_source(split=official)
            images, labels = self._decode(source, _rows(split, len(source)))
        except DataError:
            raise
        except (ValueError, TypeError, RuntimeError, OSError, KeyError) as error:
            raise DataError(
                f"The dataset {self.name!r} in {self.folder} cannot be read: "
                f"{str(error).splitlines()[0][:200]}. Try `lopt data prepare "
                f"{self.name} --again`."
            ) from error
        return StoredSplit.of(images, labels, self.mean, self.std)

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


def _check_features(path: Path) -> None:
    """Validate that a dataset only has features of TFDS.

    TFDS imports the modules that ``features.json`` names.

    Raises:
        ValueError: If the file names another class or cannot be parsed.
    """
    features = [json.loads(prepared.read_file(path))]
    while features:
        feature = features.pop()
        if isinstance(feature, list):
            features += feature
        elif isinstance(feature, dict):
            features += feature.values()
            name = feature.get("pythonClassName", _FEATURES)
            if not (isinstance(name, str) and name.startswith(_FEATURES)):
                raise ValueError(f"it must have features of TFDS only, not {name!r}")


def _rows(split: Split, num: int) -> np.ndarray:
    """Compute the rows of a split within its official split.

    Validation uses the last tenth of the official training set.
    """
    end = num - num // _VALIDATION_SHARE
    return {
        "train": np.arange(end),
        "validation": np.arange(end, num),
        "test": np.arange(num),
    }[split]
