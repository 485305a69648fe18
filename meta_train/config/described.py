"""Reconstruction of tasks from untrusted descriptions, such as those of a card."""

import functools
from collections.abc import Mapping
from typing import Any

from lopt.errors import UserError
from lopt.files.dataclass_json import from_dict
from tasks import datasets
from tasks.base import Family
from tasks.datasets.text import EMBEDDED
from tasks.size import num_parameters
from tasks.zoo import ZOO
from tasks.zoo_queries import task_classes

_LARGEST = {"depth": 128, "dim": 2**13, "seed": 2**32}
_LARGEST_SIZE = 2**24
_MOST_PARAMETERS = 2**27


def task_from_card(described: Any) -> Family:
    """Reconstruct a task from a description that may come from anywhere.

    Only registered classes and datasets are used; no path is opened.

    Raises:
        UserError: If the description is invalid, refers to a file, or describes a task
            of excessive size.
    """
    check_sizes(described)
    _check_no_files(described)
    task = from_dict(described, task_classes())
    if not isinstance(task, Family):
        raise UserError(f"a task must be a `Family`; got {type(task).__name__}.")
    check_parameters(task)
    return task


def check_parameters(task: Family) -> None:
    """Validate that a task of a card or configuration has at most 2^27 parameters.

    Raises:
        UserError: If it has more.
    """
    if any(task == entry.problem for entry in ZOO.values()):
        return
    num = _num_parameters(task)
    if num > _MOST_PARAMETERS:
        raise UserError(
            f"a task must have at most {_MOST_PARAMETERS:,} parameters; got {num:,}."
        )


_num_parameters = functools.lru_cache(maxsize=256)(num_parameters)


def check_sizes(described: Any, name: str = "") -> None:
    """Validate that the integers in a description do not exhaust memory or time.

    Args:
        described: JSON values from `to_dict`.
        name: Field that holds `described`, for the error message.

    Raises:
        UserError: If an integer is out of bounds.
    """
    if isinstance(described, Mapping):
        for key, value in described.items():
            check_sizes(value, str(key))
    elif isinstance(described, list):
        for value in described:
            check_sizes(value, name)
    elif isinstance(described, int):
        most = _LARGEST.get(name, _LARGEST_SIZE)
        if abs(described) > most:
            raise UserError(f"`{name}` must be at most {most}; got {described:.3g}.")


def _check_no_files(described: Any, name: str = "") -> None:
    """Validate that every dataset is registered and every text embedded."""
    if isinstance(described, Mapping):
        for key, value in described.items():
            _check_no_files(value, str(key))
    elif isinstance(described, list):
        for value in described:
            _check_no_files(value, name)
    elif isinstance(described, str):
        registered = tuple(datasets.DATASETS)
        known = {"dataset": registered, "datasets": registered, "text": (EMBEDDED,)}
        is_path = "/" in described or "\\" in described or described.endswith(".csv")
        if is_path or described not in known.get(name, (described,)):
            raise UserError(
                f"`{name}` of a task in a card must name a registered dataset, not a "
                f"file; got {described[:100]!r}."
            )
