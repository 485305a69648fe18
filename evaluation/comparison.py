"""Python API of the evaluation: `evaluate({"mine": my_tx}, "quick")`."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import lopt
from evaluation.baselines import BASELINES
from evaluation.report.results import to_json
from evaluation.scores import score
from evaluation.suites import (
    SUITES,
    Case,
    marked,
    missing_data,
    shortened,
    with_training_cases,
)
from evaluation.training.cache import Cache
from evaluation.training.cases import train_cases
from evaluation.training.plan import Contender, Plan
from lopt.base import LearnedOptimizer
from lopt.cache_directory import cache_folder
from lopt.errors import UserError, lookup
from lopt.kernels.prepare import prepare
from meta_train.outer.trainer import initial_theta
from tasks.size import size


def evaluate(
    contenders: Mapping[str, Contender],
    suite: str | Sequence[Case] = "quick",
    *,
    num_seeds: int = 20,
    num_tuning_seeds: int = 3,
    max_steps: int | None = None,
    seed: int = 0,
    baselines: Sequence[str] = tuple(BASELINES),
    tune: Sequence[str] = (),
    ablate: Sequence[str] = (),
    training_tasks: bool = False,
    skip_missing: bool = False,
    cache: Cache | None = None,
    on_progress: Callable[[float, str], None] = lambda fraction, text: None,
) -> dict[str, Any]:
    """Compare optimizers with tuned baselines on a suite of tasks.

    Args:
        contenders: Optimizers to evaluate, by name. Each is an optax transformation, a
            function from the number of steps to one, a pair of a learned optimizer and
            its `theta`, or the path of a file that contains such a pair.
        suite: A name in `SUITES`, or a sequence of cases.
        num_seeds: Evaluation seeds for each optimizer and task, unseen in
            meta-training.
        num_tuning_seeds: Separate seeds for tuning the baselines.
        max_steps: Maximum number of steps of a run, for all optimizers; unlimited by
            default.
        seed: Seed from which the keys of all runs are derived.
        baselines: Names in `BASELINES`. Adam, the reference, is always included.
        tune: Names of contenders with a learning rate, which is tuned over the same
            kind of grid and the same schedules as for the baselines.
        ablate: Names in `ABLATIONS`. "untrained" adds each learned optimizer at its
            initial `theta`.
        training_tasks: Whether to add the tasks that contenders were trained on. They
            are excluded from the summaries over tasks.
        skip_missing: Whether to skip tasks whose dataset has not been prepared.
        cache: Cache of results; the user's cache directory by default.
        on_progress: Callback ``(fraction, text)`` with the completed fraction of the
            work and a description of the current stage. It may be called from a worker
            thread.

    Returns:
        JSON-serializable results, as documented in `scores.score`. Non-finite numbers
        are `None`.

    Raises:
        UserError: If an argument is invalid, a name is unknown, or data is missing.
    """
    if min(num_seeds, num_tuning_seeds) < 1:
        raise UserError(
            "`num_seeds` and `num_tuning_seeds` must be at least 1; got "
            f"{num_seeds} and {num_tuning_seeds}. Try 20 and 3."
        )
    if max_steps is not None and max_steps < 1:
        raise UserError(
            f"`max_steps` must be at least 1; got {max_steps}. Omit it for whole runs."
        )
    named = suite if isinstance(suite, str) else "of one's own"
    cases = lookup("suite", suite, SUITES) if isinstance(suite, str) else tuple(suite)
    cards = {
        name: lopt.read_card(contender) if isinstance(contender, str | Path) else {}
        for name, contender in contenders.items()
    }
    for kind in ablate:
        added = lookup("ablation", kind, ABLATIONS)(contenders, cards)
        contenders = {**contenders, **added}
        cards |= {name: {"ablation": kind} for name in added}
    if training_tasks:
        cases = with_training_cases(cases, list(cards.values()))
    cases = marked(cases, list(cards.values()))
    cases = cases if max_steps is None else shortened(cases, max_steps)
    cases, skipped = _with_data(cases, skip_missing=skip_missing)
    plan = Plan(num_seeds, num_tuning_seeds, seed, tuple(baselines), tuple(tune))
    optimizers = filter(None, map(_learned_optimizer, contenders.values()))
    updates = [(o, size(case.task).params) for o in optimizers for case in cases]
    kernels = prepare("auto", updates, lambda text: on_progress(0.0, text))
    found = train_cases(
        contenders,
        cases,
        plan,
        cache or Cache(cache_folder("evaluations")),
        on_progress,
    )
    results = score(found, plan, named, cards)
    results["how"] |= {"skipped": skipped, "max_steps": max_steps, "kernels": kernels}
    return to_json(results)


def _learned_optimizer(contender: Contender) -> LearnedOptimizer | None:
    """Learned optimizer of a file or of a pair; `None` for optax transformations."""
    if isinstance(contender, str | Path):
        return lopt.load_theta(contender)[0]
    found = contender[0] if isinstance(contender, tuple) else None
    return found if isinstance(found, LearnedOptimizer) else None


def _untrained(
    contenders: Mapping[str, Contender], cards: Mapping[str, Mapping[str, Any]]
) -> dict[str, Contender]:
    """Pair each learned optimizer with the initial `theta` of its meta-training."""
    added: dict[str, Contender] = {}
    for name, contender in contenders.items():
        optimizer = _learned_optimizer(contender)
        if optimizer is None:
            continue  # An optax transformation has no theta.
        seed = cards[name].get("seed", 0)
        added[f"{name}-untrained"] = (optimizer, initial_theta(optimizer, seed))
    return added


ABLATIONS = {"untrained": _untrained}


def _with_data(
    cases: Sequence[Case], *, skip_missing: bool
) -> tuple[tuple[Case, ...], list[str]]:
    """Split cases into those with prepared data and the names of the others.

    Raises:
        UserError: If data is missing and either `skip_missing` is false or no case
            would remain.
    """
    missing = missing_data(cases)
    kept = tuple(case for case in cases if case.name not in missing)
    if missing and not (skip_missing and kept):
        names = ", ".join(missing)
        hint = " Or skip such tasks with --skip-missing." if kept else ""
        raise UserError(
            f"the data of {names} must be there. {next(iter(missing.values()))}{hint}"
        )
    return kept, list(missing)
