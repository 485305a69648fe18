"""Queries on the problems of the zoo: classes, names and required files."""

from collections.abc import Sequence
from typing import Any

from tasks import datasets
from tasks.base import Family, UnrolledSystem
from tasks.zoo import AUGMENTATIONS, ZOO


def task_classes() -> dict[str, type]:
    """Collect the classes of zoo entries and of augmentations, by class name."""
    problems = (type(entry.problem) for entry in ZOO.values())
    return {kind.__name__: kind for kind in (*problems, *AUGMENTATIONS.values())}


def unique_names(problems: Sequence[Family | UnrolledSystem]) -> tuple[str, ...]:
    """Name each problem by its zoo entry, or by its class if it has none.

    Duplicate names are numbered from 1.
    """
    entries = {entry.problem: name for name, entry in ZOO.items()}
    names = [entries.get(p, type(p).__name__) for p in problems]
    return tuple(
        f"{name}-{names[:i].count(name) + 1}" if names.count(name) > 1 else name
        for i, name in enumerate(names)
    )


def check_prepared(problem: Family | UnrolledSystem) -> None:
    """Check that the dataset files of a supervised problem exist.

    Augmentations are unwrapped. Problems without a `dataset` field are not checked.

    Raises:
        DataError: If a file is missing.
    """
    inner: Any = problem
    while hasattr(inner, "task"):
        inner = inner.task
    if hasattr(inner, "dataset"):
        datasets.get(inner.dataset).check_prepared()
