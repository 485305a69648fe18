"""The file `metrics.jsonl` of a run directory."""

import io
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from lopt.errors import UserError
from lopt.files.bounded import check_regular

METRICS_FILE = "metrics.jsonl"
_MOST_LINES = 50_000  # in memory
_LARGEST = 2**30  # bytes of the file
_LONGEST = 2**20  # bytes of a line


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """Read the lines of a metrics file, in order of the file.

    Damaged lines are skipped: not JSON, or not an object with an integer `step` and
    numbers. A missing file has no lines. Of more than 50,000 lines, every second,
    fourth, ... is returned, which bounds the memory.

    Raises:
        UserError: If the path is not a regular file of at most 1 GiB.
    """
    try:
        check_regular(path, _LARGEST)
    except FileNotFoundError:
        return []
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UserError(f"{path} must be a file of metrics; {reason}.") from error
    found, stride = [], 1
    with path.open("rb") as file:
        good = (line for _, line in _lines(file) if line is not None)
        for i, line in enumerate(good):
            if i % stride == 0:
                found.append(line)
            if len(found) > _MOST_LINES:
                found, stride = found[::2], 2 * stride
    return found


def metric_columns(lines: Sequence[Mapping[str, Any]]) -> dict[str, np.ndarray]:
    """Transpose the lines of a metrics file to an array of each metric by name.

    Every array has one entry per line, which is NaN where the metric was not logged.
    The column ``step`` has the outer steps.
    """
    names = dict.fromkeys(name for line in lines for name in line)
    return {
        name: np.asarray([line.get(name) for line in lines], float) for name in names
    }


def open_for_writing(path: Path) -> io.FileIO:
    """Open a regular file for appending; links could lead out of the run directory.

    Raises:
        OSError: If it is a link, or cannot be opened.
        ValueError: If it is not a regular file or too large.
    """
    flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK
    file = io.FileIO(os.open(path, flags, 0o666), "a+")
    try:
        check_regular(path, _LARGEST)
    except BaseException:
        file.close()
        raise
    return file


def _lines(file: BinaryIO) -> Iterator[tuple[int, dict[str, Any] | None]]:
    """Yield the end of each line in the file and its content, `None` if damaged."""
    end = 0
    while raw := file.readline(_LONGEST):
        end += len(raw)
        yield end, _parse(raw)


def _parse(raw: bytes) -> dict[str, Any] | None:
    if not raw.startswith(b"{"):
        return None
    try:
        line = json.loads(raw.decode())
    except (ValueError, RecursionError):  # not UTF-8, not JSON, or nested too deeply
        return None
    if not raw.endswith(b"\n") or not isinstance(line, dict):
        return None
    numbers = {k: v for k, v in line.items() if v is not None}
    if type(numbers.get("step")) is not int or not all(map(_is_number, line.values())):
        return None
    return line


def _is_number(value: Any) -> bool:
    """Check for null, a float, or an integer that fits into a float."""
    return value is None or (
        type(value) in (int, float) and not (abs(value) > 2**63 and type(value) is int)
    )


def truncate(path: Path, step: int, say: Callable[[str], None]) -> int:
    """Remove the lines after `step` from the end of a metrics file.

    Works line by line and in place, which needs no memory and no disk space. At step 0,
    all lines are removed, since the run writes that step again. Damaged lines between
    others are kept.

    Returns:
        Size of the remaining file in bytes.
    """
    size = num_damaged = num_seen = 0
    with open_for_writing(path) as raw, io.BufferedReader(raw) as file:
        file.seek(0)
        for end, line in _lines(file):
            if line is None:
                num_seen += 1
            elif step and line["step"] <= step:
                size, num_damaged = end, num_seen
        raw.truncate(size)
    if num_damaged:
        say(f"{path} has {num_damaged} damaged lines, which are ignored.")
    return size
