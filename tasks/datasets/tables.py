"""Regression datasets from CSV files; the last column is the target."""

import csv
import io
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from typing_extensions import override

from tasks.base import Split
from tasks.datasets.base import Dataset, StoredSplit
from tasks.datasets.embedded import standardised
from tasks.prepared import DataError, find_file, read_file

_FEWEST = 20


@dataclass(frozen=True)
class CsvTable(Dataset):
    """Regression dataset in a CSV file, with standardized inputs and targets."""

    path: str
    """Path of the file, relative to the current or to the data directory."""
    source: str = ""
    """Where the file comes from, for the error message if it is missing."""

    @override
    def check_prepared(self) -> None:
        path = find_file(self.path)
        if not path.is_file():
            inputs = self.shape[0]
            how = f"Write {self.source} there" if self.source else "Copy it there"
            raise DataError(
                f"The dataset {self.name!r} must be in {path}; there is no such file. "
                f"{how} ({inputs} inputs and the target in each row, separated by "
                "commas), or try --data-dir, or a task that needs no file, such as "
                "diabetes-linear."
            )

    @override
    def read(self, split: Split) -> StoredSplit:
        self.check_prepared()
        rows = read_csv(find_file(self.path))
        if rows.shape[1] != self.shape[0] + 1:
            raise DataError(
                f"{self.path} must have {self.shape[0] + 1} columns; got "
                f"{rows.shape[1]}."
            )
        return standardised(rows[:, :-1], rows[:, -1], split, classes=False)


def read_csv(path: Path) -> np.ndarray:
    """Read a table of finite numbers, with or without a header row.

    Returns:
        A float64 array of shape ``(rows, columns)``.

    Raises:
        DataError: If the file cannot be read, is too small, is ragged or has a cell
            that is not a finite number.
    """
    try:
        text = read_file(path).decode()
        rows = [row for row in csv.reader(io.StringIO(text, newline="")) if row]
    except (UnicodeDecodeError, csv.Error) as error:
        raise DataError(
            f"{path} must be a CSV file; {error}. Try another path, or --data-dir."
        ) from error
    has_names = bool(rows) and not any(map(_is_number, rows[0]))
    values = []
    for i, row in enumerate(rows[has_names:], start=1 + has_names):
        if len(row) != len(rows[0]):
            raise DataError(
                f"{path} must have {len(rows[0])} columns in every row; row {i} has "
                f"{len(row)}."
            )
        for j, cell in enumerate(row, start=1):
            if not _is_number(cell):
                found = f"{cell!r}" if cell.strip() else "an empty cell"
                raise DataError(
                    f"{path} must have finite numbers in every cell; row {i}, column "
                    f"{j} has {found}. Try filling it, or leaving the row out."
                )
        values.append([float(cell) for cell in row])
    if len(values) < _FEWEST or len(values[0]) < 2:
        raise DataError(
            f"{path} must have at least {_FEWEST} rows of 2 columns or more; got "
            f"{len(values)} rows."
        )
    return np.asarray(values)


def _is_number(cell: str) -> bool:
    try:
        return bool(np.isfinite(float(cell)))
    except ValueError:
        return False
