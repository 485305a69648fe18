"""What an optimizer is evaluated on: named lists of tasks with horizons."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from lopt.describe import from_dict
from tasks import datasets
from tasks.autoencoder import Autoencoder
from tasks.base import Family, Searchable
from tasks.mlp import MLP
from tasks.zoo import KINDS, ZOO, check_prepared


class Case(NamedTuple):
    """A task, how many steps it is trained for, and why it is in the suite."""

    name: str
    task: Family
    num_steps: int
    reason: str

    @property
    def label(self) -> str:
        """Names it in tables and figures."""
        return f"{self.name}, {self.num_steps} steps"


def _case(name: str, num_steps: int, reason: str) -> Case:
    task = ZOO[name].problem
    assert isinstance(task, Family)
    return Case(name, task, num_steps, reason)


def _digits(reason: str, num_steps: int = 200, **fields: Any) -> Case:
    return Case(f"digits-mlp {reason}", MLP(**fields), num_steps, reason)


_HELD_OUT_STEPS = {
    **dict.fromkeys(("digits-logistic", "breast-cancer-mlp", "yacht-mlp"), 200),
    **dict.fromkeys(("digits-conv", "digits-resnet", "digits-vae"), 200),
    **dict.fromkeys(("letters-gru", "letters-transformer"), 500),
    **dict.fromkeys(("fashion-mlp", "fashion-conv"), 1_000),
    **dict.fromkeys(("cifar10-resnet", "cifar10-myrtle"), 1_000),
}

SUITES: dict[str, tuple[Case, ...]] = {
    # Nothing downloads for these.
    "quick": (
        _case("digits-mlp", 200, "digits"),
        _case("digits-mlp-wide", 200, "wider"),
        _case("digits-mlp-deep", 200, "deeper"),
        _case("breast-cancer-mlp", 200, "dataset"),
        _case("digits-mlp", 400, "longer"),
    ),
    # One property each, to well beyond what the digits preset is trained on.
    "width": tuple(_digits(f"width {n}", width=n) for n in (8, 16, 32, 64, 128, 256)),
    "depth": tuple(_digits(f"depth {n}", depth=n) for n in (1, 2, 3, 4, 6, 8)),
    "horizon": tuple(
        _digits(f"horizon {n}", num_steps=n) for n in (50, 100, 200, 400, 800, 1_600)
    ),
    "batch": tuple(
        _digits(f"batch {n}", batch_size=n) for n in (4, 16, 64, 256, 1_024)
    ),
    "architecture": (
        _case("digits-mlp", 200, "MLP"),
        _case("digits-mlp-tanh", 200, "tanh MLP"),
        _case("digits-logistic", 200, "linear"),
        Case("digits-autoencoder", Autoencoder(), 200, "autoencoder"),
        _case("digits-vae", 200, "VAE"),
        _case("digits-conv", 200, "convolutions"),
        _case("digits-resnet", 200, "ResNet"),
    ),
    "dataset": (
        _case("digits-mlp", 200, "digits"),
        _case("wine-mlp", 200, "wine"),
        _case("diabetes-mlp", 200, "diabetes"),
        _case("breast-cancer-mlp", 200, "breast cancer"),
    ),
    # Real images among them: `lopt data prepare NAME` first.
    "heldout": tuple(
        _case(name, num_steps, "held out")
        for name, num_steps in _HELD_OUT_STEPS.items()
    ),
}


def with_training_cases(
    suite: Sequence[Case], cards: Sequence[Mapping[str, Any]]
) -> tuple[Case, ...]:
    """Puts the tasks that optimizers were trained on before the others of a suite."""
    names = {entry.problem: name for name, entry in ZOO.items()}
    trained: dict[tuple[Family, int], Case] = {}
    for card in cards:
        for described in card.get("tasks", ()):
            try:
                task = from_dict(described, KINDS)
                num_steps = int(card["horizons"][-1])
            except (ValueError, TypeError, KeyError, IndexError):
                continue  # written by hand, or a task of the user's own code
            if isinstance(task, Family) and not isinstance(task, Searchable):
                name = names.get(task, type(task).__name__)
                case = Case(name, task, num_steps, "trained on")
                trained.setdefault((task, num_steps), case)
    rest = [c for c in suite if (c.task, c.num_steps) not in trained]
    return (*trained.values(), *rest)


def shortened(cases: Sequence[Case], max_steps: int) -> tuple[Case, ...]:
    """Ends runs after so many steps; cases that are then the same become one."""
    kept: dict[tuple[Family, int], Case] = {}
    for case in cases:
        case = case._replace(num_steps=min(case.num_steps, max_steps))
        kept.setdefault((case.task, case.num_steps), case)
    return tuple(kept.values())


def missing_data(cases: Sequence[Case]) -> dict[str, str]:
    """Says of those cases whose data is not there what to do about it."""
    complaints = {}
    for case in cases:
        try:
            check_prepared(case.task)
        except datasets.DataError as error:
            complaints[case.name] = str(error)
    return complaints
