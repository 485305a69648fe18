"""Reading of JSON files from outside: regular files of bounded size."""

import json
import stat
from pathlib import Path
from typing import Any

_LARGEST = 2**26  # bytes
_DEEPEST = 50


def read_object(path: Path) -> dict[str, Any]:
    """Read a JSON object from a regular file of at most 64 MiB.

    Raises:
        OSError: If the file cannot be opened.
        ValueError: If it is not a regular file, is too large, or is not a JSON object.
    """
    about = path.stat()  # Opening a FIFO would block.
    if not stat.S_ISREG(about.st_mode):
        raise ValueError("it is not a regular file")
    if about.st_size > _LARGEST:
        raise ValueError(f"it has {about.st_size:,} bytes, above {_LARGEST:,}")
    return parse_object(path.read_bytes())


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
