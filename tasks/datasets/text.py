"""Texts as arrays of integer tokens."""

import functools
import importlib
from pathlib import Path
from typing import Literal, TypeAlias

import numpy as np
from jaxtyping import Integer

from tasks.base import Split
from tasks.prepared import DataError, find_file, read_file

Unit: TypeAlias = Literal["letter", "character", "byte"]

EMBEDDED = "descriptions"
_FEWEST = 1_000


def read_text(name: str, unit: Unit, split: Split) -> Integer[np.ndarray, " n"]:
    """Read the tokens of one split of a text.

    The splits are contiguous: the first 80 % (train), the next 10 % (validation) and
    the last 10 % (test).

    Args:
        name: Path of a file, relative to the current or to the data directory; or
            `descriptions`, about 15,000 characters of scikit-learn's dataset
            descriptions.
        unit: Token type. ``"letter"`` maps letters of either case to 1-26 and all other
            characters to 0. ``"character"`` numbers the distinct characters of the
            whole text in code point order. ``"byte"`` uses the raw bytes.
        split: The split to read.
    """
    codes, _ = _encode(name, unit, find_file(name))
    first, second = 8 * len(codes) // 10, 9 * len(codes) // 10
    parts = {
        "train": codes[:first],
        "validation": codes[first:second],
        "test": codes[second:],
    }
    return parts[split]


def vocabulary_size(name: str, unit: Unit) -> int:
    """Compute the vocabulary size of a text: 27 letters, 256 bytes, or characters."""
    fixed = {"letter": 27, "byte": 256}
    return fixed.get(unit) or _encode(name, unit, find_file(name))[1]


@functools.lru_cache(maxsize=8)
def _encode(name: str, unit: Unit, path: Path) -> tuple[np.ndarray, int]:
    raw = _descriptions() if name == EMBEDDED else read_file(path)
    if len(raw) < _FEWEST:
        raise DataError(
            f"The text {name!r} must have at least {_FEWEST} bytes; got {len(raw)}. "
            f"Try {EMBEDDED!r}, which needs no file."
        )
    if unit == "byte":
        return np.frombuffer(raw, np.uint8), 256
    try:
        text = raw.decode()
    except UnicodeDecodeError as error:
        raise DataError(
            f"The text {name!r} must be UTF-8 to be read as {unit}s; {error}. "
            "Try bytes."
        ) from error
    if unit == "character":
        letters, codes = np.unique(list(text), return_inverse=True)
        return codes.astype(np.int32), len(letters)
    codes = np.frombuffer(text.lower().encode("ascii", "replace"), np.uint8)
    is_letter = (codes >= ord("a")) & (codes <= ord("z"))
    return np.where(is_letter, codes - ord("a") + 1, 0).astype(np.uint8), 27


def _descriptions() -> bytes:
    module = importlib.import_module("sklearn.datasets")
    names = ("breast_cancer", "diabetes", "digits", "iris", "linnerud", "wine")
    texts = [getattr(module, f"load_{name}")().DESCR for name in names]
    return " ".join(texts).encode()
