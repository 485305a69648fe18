"""Image datasets as TFDS stores them, read without TensorFlow."""

import json
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from typing_extensions import override

from tasks.base import Split
from tasks.datasets.base import DataError, Dataset, Stored
from tasks.datasets.directory import data_dir

_VALIDATION_SHARE = 10  # one in so many of the official training set


@dataclass(frozen=True)
class TfdsImages(Dataset):
    """Pixels stay bytes until they are in a batch, normalised by channel."""

    version: str
    """Of the official TFDS builder."""
    mean: tuple[float, ...]
    """Of each channel over the training set, of 255."""
    std: tuple[float, ...]
    """The same."""

    @property
    def folder(self) -> Path:
        """Where TFDS keeps it."""
        return data_dir() / self.name.replace("-", "_") / self.version

    @override
    def check_prepared(self) -> None:
        shards = missing_shards(self.folder)
        if shards is None or shards:
            what = f"{len(shards)} of its files" if shards else "it"
            raise DataError(
                f"The dataset {self.name!r} must be in {self.folder}; {what} cannot be "
                f"found there. Try `lopt data prepare {self.name}`, or --data-dir, or "
                "the preset digits-mlp, which needs no download."
            )

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


def missing_shards(folder: Path) -> list[str] | None:
    """Returns which files a prepared dataset lacks; nothing if it is not prepared."""
    try:
        info = json.loads((folder / "dataset_info.json").read_text())
        splits = {s["name"]: len(s["shardLengths"]) for s in info["splits"]}
        name = info["name"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    names = [
        f"{name}-{split}.array_record-{i:05d}-of-{num:05d}"
        for split, num in splits.items()
        for i in range(num)
    ]
    return [file for file in names if not (folder / file).is_file()]


def _rows(split: Split, num: int) -> np.ndarray:
    """Returns a split's rows; those of validation are the last of the training set."""
    end = num - num // _VALIDATION_SHARE
    return {
        "train": np.arange(end),
        "validation": np.arange(end, num),
        "test": np.arange(num),
    }[split]
