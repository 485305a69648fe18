"""Metrics logging to a JSON Lines file and to Weights & Biases."""

import io
import json
import math
import os
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import jax
import numpy as np

from lopt.errors import UserError
from lopt.files.bounded import check_regular
from meta_train.config.config import MetaTrainConfig
from meta_train.runtime.wandb_log import WandbLog
from tasks.base import Theta

METRICS_FILE = "metrics.jsonl"
_MOST_PENDING = 10_000
_MOST_LOGGED = 32  # numbers of a theta that is logged
_MOST_LINES = 50_000  # in memory
_LARGEST = 2**30  # bytes of the file
_LONGEST = 2**20  # bytes of a line


class MetricsLog:
    """Metrics log in ``RUN_DIR/metrics.jsonl`` and, unless disabled, in wandb.

    A failure never raises. It is reported once, and lines that cannot be written are
    kept in memory and written later.
    """

    def __init__(
        self,
        config: MetaTrainConfig,
        described: Mapping[str, Any],
        step: int,
        say: Callable[[str], None],
    ):
        """Open the log of a run at outer step `step`.

        Lines of later steps, written after the checkpoint that the run resumes from,
        are removed from the file. `described` is the serialized `config` for wandb.
        """
        self._say = say
        self._path = config.run_dir / METRICS_FILE
        self._pending: deque[bytes] = deque(maxlen=_MOST_PENDING)
        self._has_failed = False
        self._size: int | None = None
        self._step = step
        self.flush()
        self._wandb = WandbLog(config, described, say)

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        """Log `metrics` at outer step `step`.

        Non-finite values are written to the file as null and to wandb unchanged.
        """
        finite = {k: v if math.isfinite(v) else None for k, v in metrics.items()}
        line = json.dumps({"step": step, **finite}) + "\n"
        self._pending.append(line.encode())
        self.flush()
        self._wandb.write(step, metrics)

    def close(self) -> None:
        """Write pending lines and finish the wandb run."""
        self.flush()
        if self._pending:
            self._say(f"{len(self._pending)} lines of {self._path} are lost.")
        self._wandb.close()

    def flush(self) -> None:
        """Append the pending lines to the file; keep them if that fails."""
        try:
            if self._size is None:
                self._size = _cut(self._path, self._step, self._say)
            with _open_for_writing(self._path) as file:
                if file.tell() != self._size:  # an incomplete line of a failed write
                    file.truncate(self._size)
                while self._pending:
                    line = self._pending[0]
                    if file.write(line) != len(line):
                        raise OSError("the disk is full")
                    self._size += len(line)
                    self._pending.popleft()
        except (OSError, ValueError) as error:
            if not self._has_failed:
                reason = getattr(error, "strerror", None) or error
                self._say(
                    f"{self._path} cannot be written ({reason}); the "
                    "run continues and retries."
                )
            self._has_failed = True


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


def _open_for_writing(path: Path) -> io.FileIO:
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


def metric_columns(lines: Sequence[Mapping[str, Any]]) -> dict[str, np.ndarray]:
    """Transpose the lines of a metrics file to an array of each metric by name.

    Every array has one entry per line, which is NaN where the metric was not logged.
    The column ``step`` has the outer steps.
    """
    names = dict.fromkeys(name for line in lines for name in line)
    return {
        name: np.asarray([line.get(name) for line in lines], float) for name in names
    }


def theta_metrics(theta: Theta) -> dict[str, float]:
    """Name every number of a small `theta`, for trajectories; empty for a large one.

    An array has the name of its path in `theta`, such as ``theta/log_lr``, and its
    entries are numbered. At most 32 numbers are named.
    """
    leaves = jax.tree_util.tree_leaves_with_path(theta)
    if sum(leaf.size for _, leaf in leaves) > _MOST_LOGGED:
        return {}
    named = {}
    for path, leaf in leaves:
        where = jax.tree_util.keystr(path, simple=True, separator="/")
        name = f"theta/{where}" if where else "theta"
        values = np.asarray(leaf.addressable_data(0), float)
        for i, value in enumerate(values.ravel()):
            named[f"{name}/{i}" if values.ndim else name] = float(value)
    return named


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


def _cut(path: Path, step: int, say: Callable[[str], None]) -> int:
    """Remove the lines after `step` from the end of a metrics file.

    Works line by line and in place, which needs no memory and no disk space. At step 0,
    all lines are removed, since the run writes that step again. Damaged lines between
    others are kept.

    Returns:
        Size of the remaining file in bytes.
    """
    size = num_damaged = num_seen = 0
    with _open_for_writing(path) as raw, io.BufferedReader(raw) as file:
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
