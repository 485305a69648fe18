"""Reading of JSON files from outside: regular files of bounded size and depth."""

import json
from pathlib import Path
from typing import Any

from lopt.files.bounded import read_bounded

LARGEST = 2**24
"""Bytes of a JSON text. Parsed values may need 20 times as much memory."""
_DEEPEST = 50


def read_object(path: Path) -> dict[str, Any]:
    """Read a JSON object from a regular file of at most 16 MiB.

    Raises:
        OSError: If the file cannot be opened.
        ValueError: If it is not a regular file, is too large, or is not a JSON object.
    """
    return parse_object(read_bounded(path, LARGEST))


def parse_object(text: str | bytes) -> dict[str, Any]:
    """Parse a JSON object that is nested at most 50 levels deep.

    Raises:
        ValueError: If `text` is not such an object.
    """
    try:
        value = json.loads(text)
    except UnicodeDecodeError as error:
        raise ValueError("it is not UTF-8") from error
    except json.JSONDecodeError as error:
        raise ValueError(f"it is not JSON: {error}") from error
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    if not isinstance(value, dict):
        raise ValueError(f"it must be a JSON object, not a {type(value).__name__}")
    level: list[Any] = [value]
    for _ in range(_DEEPEST):
        level = [item for each in level for item in _children(each)]
    if level:
        raise ValueError(f"it is nested more than {_DEEPEST} levels deep")
    return value


def _children(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return list(value.values())
    return value if isinstance(value, list) else []
