"""Where datasets lie on disk, and whether they are there.

Nothing here is slow to import: a command can say that data is missing at once.
"""

import json
import os
from pathlib import Path

VARIABLE = "LOPT_DATA_DIR"  # `--data-dir` of any command sets it

# What must be prepared first, and which version of its official TFDS builder.
VERSIONS = {"mnist": "3.0.1", "fashion-mnist": "3.0.1", "cifar10": "3.0.2"}


class DataError(Exception):
    """Data that is missing or cannot be read; what it says is meant for the user."""

    is_for_user = True


def data_dir() -> Path:
    """Returns the directory of `--data-dir`, of `LOPT_DATA_DIR`, or TFDS's default."""
    for name in (VARIABLE, "TFDS_DATA_DIR"):
        if os.environ.get(name):
            return Path(os.environ[name]).expanduser()
    return Path.home() / "tensorflow_datasets"


def folder(name: str) -> Path:
    """Returns where TFDS keeps one of the `VERSIONS`."""
    return data_dir() / name.replace("-", "_") / VERSIONS[name]


def check_prepared(name: str) -> None:
    """Raises unless all files of one of the `VERSIONS` are there."""
    missing = _missing_files(folder(name))
    if missing is None or missing:
        what = f"{len(missing)} of its files" if missing else "it"
        raise DataError(
            f"The dataset {name!r} must be in {folder(name)}; {what} cannot be found "
            f"there. Try `lopt data prepare {name}`, or --data-dir, or the preset "
            "digits-mlp, which needs no download."
        )


def _missing_files(folder: Path) -> list[str] | None:
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
