"""Evaluation suites: named lists of tasks with horizons."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from lopt.errors import UserError, lookup
from meta_train.config.described import task_from_card
from tasks import datasets
from tasks.base import Family, ParameterizedFamily
from tasks.supervised.autoencoder import Autoencoder
from tasks.supervised.mlp import MLP
from tasks.zoo import ZOO
from tasks.zoo_queries import check_prepared, unique_names

TRAINED = "trained on"


class Case(NamedTuple):
    """One task of a suite.

    Attributes:
        name: Name in the report.
        task: The task.
        num_steps: Horizon of a run.
        reason: Property that the task tests, or `TRAINED`.
    """

    name: str
    task: Family
    num_steps: int
    reason: str

    @property
    def label(self) -> str:
        """Name with the horizon, for the report."""
        return f"{self.name}, {self.num_steps} steps"


def _case(name: str, num_steps: int, reason: str) -> Case:
    task = ZOO[name].problem
    assert isinstance(task, Family)
    return Case(name, task, num_steps, reason)


def _digits(reason: str, num_steps: int = 200, **fields: Any) -> Case:
    return Case(f"digits-mlp {reason}", MLP(**fields), num_steps, reason)


_HELD_OUT_STEPS = {
    "digits-conv": 200,
    "digits-resnet": 150,
    "digits-logistic": 200,
    "digits-vae": 300,
    "breast-cancer-mlp": 200,
    "friedman-mlp": 300,
    "yacht-mlp": 300,
    "letters-gru": 300,
    "letters-transformer": 300,
    "fashion-mlp": 500,
    "fashion-conv-small": 150,
    "cifar10-resnet-small": 100,
    "cifar10-myrtle-small": 100,
}

SUITES: dict[str, tuple[Case, ...]] = {
    # Runs in minutes without downloads. Each case has an architecture or a dataset that
    # the presets without downloads do not train on.
    "quick": (
        _case("digits-conv-small", 100, "convolutions"),
        _case("digits-vae", 100, "VAE"),
        _case("letters-gru-small", 100, "recurrent"),
        _case("friedman-mlp", 100, "regression"),
        _case("breast-cancer-mlp", 100, "dataset"),
    ),
    # The next suites vary one property each, far beyond the range of meta-training.
    "width": tuple(_digits(f"width {n}", width=n) for n in (8, 32, 128, 512)),
    "depth": tuple(_digits(f"depth {n}", depth=n) for n in (1, 2, 4, 8, 16)),
    "horizon": tuple(
        _digits(f"horizon {n}", num_steps=n) for n in (40, 200, 1_000, 8_000)
    ),
    "batch": tuple(_digits(f"batch {n}", batch_size=n) for n in (8, 64, 256, 1_024)),
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
    # Includes image datasets, which need `lopt data prepare NAME` first. Sizes and
    # horizons are chosen so that two cores finish in two hours.
    "heldout": tuple(
        _case(name, num_steps, "held out")
        for name, num_steps in _HELD_OUT_STEPS.items()
    ),
}


def cases_of_tasks(names: Sequence[str], num_steps: int) -> tuple[Case, ...]:
    """Make a case of each named task.

    Args:
        names: Names in the zoo.
        num_steps: Horizon of tasks that are in no suite; others have the horizon of the
            first suite that contains them.

    Raises:
        UserError: If a name is unknown, or a task cannot be trained by an optimizer.
    """
    known = {case.name: case for suite in SUITES.values() for case in reversed(suite)}
    cases = []
    for name in dict.fromkeys(names):
        task = lookup("task", name, ZOO).problem
        if not isinstance(task, Family) or isinstance(task, ParameterizedFamily):
            raise UserError(
                f"a task must be trained by an optimizer alone; {name} is not. "
                "Try another task of `lopt tasks`."
            )
        cases.append(known.get(name, Case(name, task, num_steps, "named")))
    return tuple(cases)


_MOST_TASKS, _LONGEST = 100, 10**7  # of a card, which may come from anywhere


class _Trained(NamedTuple):
    """A meta-training task with its shortest and longest horizon."""

    task: Family
    shortest: int
    longest: int


def _trained_on(cards: Sequence[Mapping[str, Any]]) -> list[_Trained]:
    """Collect meta-training tasks from optimizer cards.

    Tasks that cannot be reconstructed from the zoo, and searchable tasks, are ignored.
    """
    found = []
    for card in cards:
        described = card.get("tasks")
        for each in described[:_MOST_TASKS] if isinstance(described, list) else ():
            try:
                task = task_from_card(each)
                horizons = [int(x) for x in card["horizons"]]
                is_valid = 1 <= min(horizons) <= max(horizons) <= _LONGEST
            # A handwritten card, or a task defined in user code. Constructors and
            # tracing may raise anything.
            except Exception:
                continue
            if is_valid and not isinstance(task, ParameterizedFamily):
                found.append(_Trained(task, min(horizons), max(horizons)))
    return found


def with_training_cases(
    suite: Sequence[Case], cards: Sequence[Mapping[str, Any]]
) -> tuple[Case, ...]:
    """Prepend the meta-training tasks of optimizers to a suite.

    Each task gets the longest horizon of its meta-training. Duplicates are removed.

    Args:
        suite: Cases to extend.
        cards: Metadata of the optimizers, as from `lopt.read_card`.
    """
    trained = list(dict.fromkeys(_trained_on(cards)))
    names = unique_names([each.task for each in trained])
    new: dict[tuple[Family, int], Case] = {}
    for name, (task, _, num_steps) in zip(names, trained, strict=True):
        new.setdefault((task, num_steps), Case(name, task, num_steps, TRAINED))
    rest = [c for c in suite if (c.task, c.num_steps) not in new]
    return (*new.values(), *rest)


def marked(
    suite: Sequence[Case], cards: Sequence[Mapping[str, Any]]
) -> tuple[Case, ...]:
    """Set the reason of cases seen in meta-training to `TRAINED`.

    A case counts as seen if an optimizer was trained on the same task and the horizon
    lies in the range of its meta-training.

    Args:
        suite: Cases to mark.
        cards: Metadata of the optimizers, as from `lopt.read_card`.
    """
    trained = _trained_on(cards)

    def is_seen(case: Case) -> bool:
        return any(
            case.task == task and low <= case.num_steps <= high
            for task, low, high in trained
        )

    return tuple(c._replace(reason=TRAINED) if is_seen(c) else c for c in suite)


def shortened(cases: Sequence[Case], max_steps: int) -> tuple[Case, ...]:
    """Clamp horizons to `max_steps` and remove cases that become duplicates."""
    kept: dict[tuple[Family, int], Case] = {}
    for case in cases:
        case = case._replace(num_steps=min(case.num_steps, max_steps))
        kept.setdefault((case.task, case.num_steps), case)
    return tuple(kept.values())


def missing_data(cases: Sequence[Case]) -> dict[str, str]:
    """Find cases whose dataset has not been prepared.

    Returns:
        Error message for each such case, by name, with the command to prepare the data.
    """
    complaints = {}
    for case in cases:
        try:
            check_prepared(case.task)
        except datasets.DataError as error:
            complaints[case.name] = str(error)
    return complaints
