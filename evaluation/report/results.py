"""Results of an evaluation as JSON: conversion, reading and lookups."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeAlias

from evaluation.scores import SCHEMA
from lopt.cli.output import printable
from lopt.errors import UserError, one_line
from lopt.files.json_file import read_object

RESULTS_FILE = "results.json"
Results: TypeAlias = Mapping[str, Any]


def to_json(value: Any) -> Any:
    """Convert `value` to JSON-serializable containers.

    Named tuples become dictionaries, and non-finite floats become `None`. Control
    characters of strings are replaced by question marks.
    """
    if hasattr(value, "_asdict"):
        value = value._asdict()
    if isinstance(value, Mapping):
        return {printable(str(k)): to_json(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [to_json(v) for v in value]
    if isinstance(value, str):
        return printable(value)
    return None if isinstance(value, float) and not math.isfinite(value) else value


def read_results(path: Path) -> Results:
    """Read results written by `write_report`.

    Args:
        path: A `results.json`, or the directory that contains it.

    Raises:
        UserError: If the file is unreadable or has a different schema version.
    """
    path = path / RESULTS_FILE if path.is_dir() else path
    try:
        results = read_object(path)
        schema = results["schema"]
    except (OSError, ValueError, KeyError) as error:
        raise UserError(
            f"{path} must be a {RESULTS_FILE} of `lopt evaluate`; it cannot be read "
            f"({one_line(error)}). Try lopt evaluate."
        ) from error
    if schema != SCHEMA:
        raise UserError(
            f"{path} was written by another version of lopt: its schema is "
            f"{one_line(schema)}, "
            f"and this version reads {SCHEMA}. Try lopt evaluate again; runs are "
            "cached."
        )
    return to_json(results)


def best_baseline(case: Mapping[str, Any], results: Results) -> str:
    """Find the baseline with the lowest mean final loss on a task."""
    names = [name for name, m in results["methods"].items() if m["is_baseline"]]

    def loss(name):
        return case["methods"][name]["final_loss"]["value"]

    return min(names, key=lambda name: math.inf if loss(name) is None else loss(name))
