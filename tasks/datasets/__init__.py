"""Registry of datasets by name.

To register a dataset, add one line to `DATASETS`, or call `register_dataset` at
run time.
"""

import functools
from pathlib import Path

from lopt.errors import UserError, lookup
from tasks.base import Split
from tasks.datasets.base import Dataset, Examples, StoredSplit
from tasks.datasets.embedded import Embedded, Friedman
from tasks.datasets.images import TfdsImages
from tasks.datasets.tables import CsvTable, read_csv
from tasks.prepared import DataError, data_dir, find_file

__all__ = [
    "DATASETS",
    "DataError",
    "Dataset",
    "Examples",
    "StoredSplit",
    "get",
    "load",
    "register_dataset",
]

_CIFAR_MEAN, _CIFAR_STD = (125.3, 123.0, 113.9), (63.0, 62.1, 66.7)

DATASETS: dict[str, Dataset] = {
    dataset.name: dataset
    for dataset in (
        Embedded("digits", (8, 8, 1), 10, 1_438, "handwritten digits"),
        Embedded("wine", (13,), 3, 143, "analyses of wines"),
        Embedded("breast-cancer", (30,), 2, 456, "cell nuclei"),
        Embedded("diabetes", (10,), 0, 354, "course of the disease"),
        Friedman("friedman", (10,), 0, 800, "a smooth function, generated"),
        TfdsImages(
            *("mnist", (28, 28, 1), 10, 54_000, "handwritten digits"),
            *((33.3,), (78.6,)),
        ),
        TfdsImages(
            *("fashion-mnist", (28, 28, 1), 10, 54_000, "pictures of clothes"),
            *((72.9,), (90.0,)),
        ),
        TfdsImages(
            *("cifar10", (32, 32, 3), 10, 45_000, "small photographs"),
            *(_CIFAR_MEAN, _CIFAR_STD),
        ),
        CsvTable(
            *("yacht", (6,), 0, 247, "resistance of hulls", "uci_yacht.csv"),
            source="`Yacht Hydrodynamics` of the UCI repository",
        ),
    )
}


def get(name: str) -> Dataset:
    """Look up a dataset by name, or by the path of a CSV file.

    Args:
        name: Key of `DATASETS`, or a path that ends in ``.csv``, relative to the
            current or to the data directory. The file is read to find its shape.

    Raises:
        UserError: If `name` is neither.
        DataError: If the CSV file cannot be read.
    """
    if name in DATASETS:
        return DATASETS[name]
    if name.endswith(".csv"):
        num, width = read_csv(find_file(name)).shape
        return CsvTable(name, (width - 1,), 0, num - num // 5, "a table", name)
    return lookup("dataset or CSV file", name, DATASETS)


def register_dataset(dataset: Dataset) -> None:
    """Register a dataset under its name.

    Raises:
        UserError: If another dataset has this name.
    """
    if DATASETS.setdefault(dataset.name, dataset) != dataset:
        raise UserError(
            f"`dataset.name` must not be the name of another dataset; got "
            f"{dataset.name!r}. Try my-{dataset.name}."
        )


def load(name: str, split: Split) -> StoredSplit:
    """Load a split onto the device, with a cache per data directory."""
    return _load(name, split, data_dir(), Path.cwd())


@functools.lru_cache(maxsize=16)
def _load(name: str, split: Split, *directories: Path) -> StoredSplit:
    return get(name).read(split)
