"""What an optimizer is evaluated on: named lists of tasks with horizons."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from lopt.describe import from_dict
from tasks.base import Family
from tasks.zoo import KINDS, ZOO


class Case(NamedTuple):
    """A task, how many steps it is trained for, and why it is in the suite."""

    name: str
    task: Family
    num_steps: int
    reason: str


def _case(name: str, num_steps: int, reason: str) -> Case:
    task = ZOO[name].problem
    assert isinstance(task, Family)
    return Case(name, task, num_steps, reason)


SUITES: dict[str, tuple[Case, ...]] = {
    "quick": (
        _case("digits-mlp", 200, "digits"),
        _case("digits-mlp-wide", 200, "wider"),
        _case("digits-mlp-deep", 200, "deeper"),
        _case("digits-mlp-tanh", 200, "activation"),
        _case("breast-cancer-mlp", 200, "dataset"),
        _case("digits-mlp", 400, "longer"),
    ),
}


def with_training_cases(
    suite: tuple[Case, ...], card: Mapping[str, Any]
) -> tuple[Case, ...]:
    """Puts the tasks that an optimizer was trained on before the others of a suite."""
    names = {entry.problem: name for name, entry in ZOO.items()}
    trained = []
    for described in card.get("tasks", ()):
        try:
            task = from_dict(described, KINDS)
            num_steps = int(card["horizons"][-1])
        except (ValueError, TypeError, KeyError, IndexError):
            continue  # written by hand, or a task of the user's own code
        if isinstance(task, Family):
            name = names.get(task, type(task).__name__)
            trained.append(Case(name, task, num_steps, "trained on"))
    seen = {(case.task, case.num_steps) for case in trained}
    return (*trained, *(c for c in suite if (c.task, c.num_steps) not in seen))
