"""Metrics log of a run: a JSON Lines file, and further loggers by name."""

import json
import math
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np

from meta_train.config.config import MetaTrainConfig
from meta_train.runtime.loggers import Callback, LoggedRun, open_loggers
from meta_train.runtime.metrics_file import METRICS_FILE, open_for_writing, truncate
from tasks.base import Theta

_MOST_PENDING = 10_000
_MOST_LOGGED = 32  # numbers of a theta that is logged


class MetricsLog:
    """Metrics log in ``RUN_DIR/metrics.jsonl`` and in the loggers of the configuration.

    A failure never raises. It is reported once, and lines that cannot be written are
    kept in memory and written later.
    """

    def __init__(
        self,
        config: MetaTrainConfig,
        described: Mapping[str, Any],
        step: int,
        say: Callable[[str], None],
        callback: Callback | None = None,
    ):
        """Open the log of a run at outer step `step`.

        Lines of later steps, written after the checkpoint that the run resumes from,
        are removed from the file.

        Args:
            config: Configuration of the run.
            described: The same, serialized for loggers.
            step: Outer step at which the run starts or resumes.
            say: Function that prints a message.
            callback: Function to call with the step and the metrics of every line.
        """
        self._say = say
        self._path = config.run_dir / METRICS_FILE
        self._pending: deque[bytes] = deque(maxlen=_MOST_PENDING)
        self._has_failed = False
        self._size: int | None = None
        self._step = step
        self.flush()
        run = LoggedRun(config, described, step, say)
        self._loggers = open_loggers(run, callback)

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        """Log `metrics` at outer step `step`.

        Non-finite values are written to the file as null and to loggers unchanged.
        """
        finite = {k: v if math.isfinite(v) else None for k, v in metrics.items()}
        line = json.dumps({"step": step, **finite}) + "\n"
        self._pending.append(line.encode())
        self.flush()
        for logger in self._loggers:
            logger.write(step, metrics)

    def close(self) -> None:
        """Write pending lines and close the loggers."""
        self.flush()
        if self._pending:
            self._say(f"{len(self._pending)} lines of {self._path} are lost.")
        for logger in self._loggers:
            logger.close()

    def flush(self) -> None:
        """Append the pending lines to the file; keep them if that fails."""
        try:
            if self._size is None:
                self._size = truncate(self._path, self._step, self._say)
            with open_for_writing(self._path) as file:
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
