"""Metrics as a table of comma-separated values."""

import csv
import io
import time
from collections.abc import Mapping

from typing_extensions import override

from lopt.files.atomic import write_atomically
from meta_train.runtime.loggers.base import LoggedRun, Logger
from meta_train.runtime.metrics_file import METRICS_FILE, read_metrics

CSV_FILE = "metrics.csv"
_SECONDS_BETWEEN_WRITES = 30.0


class CSVLog(Logger):
    """Table in ``RUN_DIR/metrics.csv``, one row per line of ``metrics.jsonl``.

    Metrics may appear at any step, each with a column of its own. The table is
    therefore written as a whole, every 30 seconds and at the end of the run. Values
    that were not logged, or are not finite, are empty.
    """

    def __init__(self, run: LoggedRun):
        self._run_dir = run.config.run_dir
        self._written_at = time.monotonic()

    @override
    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        if time.monotonic() - self._written_at > _SECONDS_BETWEEN_WRITES:
            self.close()

    @override
    def close(self) -> None:
        lines = read_metrics(self._run_dir / METRICS_FILE)
        names = sorted({name for line in lines for name in line} - {"step"})
        table = io.StringIO()
        writer = csv.DictWriter(table, ["step", *names], lineterminator="\n")
        writer.writeheader()
        writer.writerows(lines)
        write_atomically(self._run_dir / CSV_FILE, table.getvalue())
        self._written_at = time.monotonic()
