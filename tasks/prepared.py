"""Paths of prepared datasets, and checks that their files exist.

This module does not import JAX, so that commands can report missing data without a slow
import.
"""

import json
import os
import stat
from pathlib import Path

from lopt.errors import UserError

# The flag `--data-dir` of any command sets this environment variable.
VARIABLE = "LOPT_DATA_DIR"

# Datasets that must be prepared, with the version of their official TFDS builder.
VERSIONS = {"mnist": "3.0.1", "fashion-mnist": "3.0.1", "cifar10": "3.0.2"}


_LARGEST = 2**30  # bytes of a user's file


class DataError(UserError):
    """Missing or unreadable data."""


def data_dir() -> Path:
    """Resolve the data directory.

    In order of precedence: `LOPT_DATA_DIR`, which `--data-dir` sets; `TFDS_DATA_DIR`;
    and the default of TFDS, ``~/tensorflow_datasets``.
    """
    for name in (VARIABLE, "TFDS_DATA_DIR"):
        if os.environ.get(name):
            return Path(os.environ[name]).expanduser()
    return Path.home() / "tensorflow_datasets"


def find_file(name: str) -> Path:
    """Resolve the path of a user's file.

    A relative path refers to the current directory if the file exists there, and to the
    data directory otherwise.
    """
    here = Path(name).expanduser().absolute()
    return here if here.exists() else data_dir() / name


def read_file(path: Path) -> bytes:
    """Read a regular file of at most 1 GiB.

    Raises:
        DataError: If it is missing, unreadable, too large, or a device or pipe, which
            might never end.
    """
    try:
        about = path.stat()
        if not stat.S_ISREG(about.st_mode):
            raise DataError(
                f"{path} must be a regular file. Try a copy of its content."
            )
        if about.st_size > _LARGEST:
            raise DataError(
                f"{path} must have at most {_LARGEST:,} bytes; got {about.st_size:,}. "
                "Try a part of it."
            )
        return path.read_bytes()
    except OSError as error:
        raise DataError(
            f"{path} must be a file that can be read; {error.strerror}. Try another "
            "path, or --data-dir."
        ) from error


def folder(name: str) -> Path:
    """Build the TFDS directory path of a dataset in `VERSIONS`."""
    return data_dir() / name.replace("-", "_") / VERSIONS[name]


def check_prepared(name: str) -> None:
    """Check that all files of a dataset in `VERSIONS` exist.

    Raises:
        DataError: If the dataset is not prepared or a file is missing.
    """
    missing = _missing_files(folder(name))
    if missing is None or missing:
        what = f"{len(missing)} of its files" if missing else "it"
        raise DataError(
            f"The dataset {name!r} must be in {folder(name)}; {what} cannot be found "
            f"there. Try `lopt data prepare {name}`, or --data-dir, or the preset "
            "digits-mlp, which needs no download."
        )


def _missing_files(folder: Path) -> list[str] | None:
    """List the missing files of a dataset, or `None` if it is not prepared."""
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
