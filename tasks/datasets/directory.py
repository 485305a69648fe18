"""Where datasets lie on disk."""

import os
from pathlib import Path

VARIABLE = "LOPT_DATA_DIR"  # `--data-dir` of any command sets it


def data_dir() -> Path:
    """Returns the directory of `--data-dir`, of `LOPT_DATA_DIR`, or TFDS's default."""
    for name in (VARIABLE, "TFDS_DATA_DIR"):
        if os.environ.get(name):
            return Path(os.environ[name]).expanduser()
    return Path.home() / "tensorflow_datasets"
