"""One call from optimizers to results: `evaluate({"mine": my_tx}, "quick")`."""

import itertools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import lopt
from evaluation.baselines import KINDS
from evaluation.cache import Cache
from evaluation.report import plain
from evaluation.run import Contender, Plan, num_stages, run
from evaluation.scores import score
from evaluation.suites import (
    SUITES,
    Case,
    marked,
    missing_data,
    shortened,
    with_training_cases,
)
from lopt.base import LearnedOptimizer
from lopt.errors import UserError, find
from lopt.folders import cache_folder
from meta_train.trainer import initial_theta


def evaluate(
    contenders: Mapping[str, Contender],
    suite: str | Sequence[Case] = "quick",
    *,
    num_seeds: int = 20,
    num_tuning_seeds: int = 3,
    max_steps: int | None = None,
    seed: int = 0,
    baselines: Sequence[str] = tuple(KINDS),
    tune: Sequence[str] = (),
    ablate: Sequence[str] = (),
    training_tasks: bool = False,
    skip_missing: bool = False,
    cache: Cache | None = None,
    on_progress: Callable[[int, int, str], None] = lambda done, total, text: None,
) -> dict[str, Any]:
    """Compares optimizers with tuned baselines, and returns what a report is made of.

    Args:
        contenders: By name, optax transformations, functions from a number of steps to
            one, pairs of a learned optimizer and its theta, or files that hold both.
        suite: A name in `SUITES`, or cases of one's own.
        num_seeds: Runs of each optimizer on each task, new to whoever was trained.
        num_tuning_seeds: Other runs, on which each setting of a baseline is tried.
        max_steps: Where longer runs end, for everybody; none if not given.
        seed: Fixes them all.
        baselines: Which, of `KINDS`; Adam is always among them.
        tune: Contenders with a learning rate, which is then tuned over the grid and
            schedules of the baselines.
        ablate: "untrained" adds each learned optimizer with its initial theta.
        training_tasks: Whether the tasks that contenders were trained on are added;
            they do not count in the summaries.
        skip_missing: Whether tasks whose data is not there are left out.
        cache: Where results are kept between calls; a folder of the user's by default.
        on_progress: Is told how many stages are done, of how many, and which came last.
    """
    if min(num_seeds, num_tuning_seeds) < 1:
        raise UserError(
            "`num_seeds` and `num_tuning_seeds` must be at least 1; got "
            f"{num_seeds} and {num_tuning_seeds}. Try 20 and 3."
        )
    if max_steps is not None and max_steps < 1:
        raise UserError(
            f"`max_steps` must be at least 1; got {max_steps}. Leave it out for whole "
            "runs."
        )
    named = suite if isinstance(suite, str) else "of one's own"
    cases = find("suite", suite, SUITES) if isinstance(suite, str) else tuple(suite)
    cards = {
        name: lopt.read_card(contender) if isinstance(contender, str | Path) else {}
        for name, contender in contenders.items()
    }
    for kind in ablate:
        added = find("ablation", kind, ABLATIONS)(contenders, cards)
        contenders = {**contenders, **added}
        cards |= {name: {"ablation": kind} for name in added}
    if training_tasks:
        cases = with_training_cases(cases, list(cards.values()))
    cases = marked(cases, list(cards.values()))
    cases = cases if max_steps is None else shortened(cases, max_steps)
    cases, skipped = _with_data(cases, skip_missing=skip_missing)
    plan = Plan(num_seeds, num_tuning_seeds, seed, tuple(baselines), tuple(tune))
    total, count = num_stages(len(cases), len(contenders)), itertools.count(1)
    found = run(
        contenders,
        cases,
        plan,
        cache or Cache(cache_folder("evaluations")),
        lambda text: on_progress(next(count), total, text),
    )
    results = score(found, plan, named, cards)
    results["how"] |= {"skipped": skipped, "max_steps": max_steps}
    return plain(results)


def _untrained(
    contenders: Mapping[str, Contender], cards: Mapping[str, Mapping[str, Any]]
) -> dict[str, Contender]:
    """Learned optimizers with the theta that their meta-training began with."""
    added: dict[str, Contender] = {}
    for name, contender in contenders.items():
        optimizer = None
        if isinstance(contender, str | Path):
            optimizer, _ = lopt.load_theta(contender)
        elif isinstance(contender, tuple):
            optimizer = contender[0]
        if not isinstance(optimizer, LearnedOptimizer):
            continue  # an optax transformation has no theta
        seed = cards[name].get("seed", 0)
        added[f"{name}-untrained"] = (optimizer, initial_theta(optimizer, seed))
    return added


ABLATIONS = {"untrained": _untrained}


def _with_data(
    cases: Sequence[Case], *, skip_missing: bool
) -> tuple[tuple[Case, ...], list[str]]:
    """Returns the cases whose data is there, and the names of those left out."""
    missing = missing_data(cases)
    kept = tuple(case for case in cases if case.name not in missing)
    if missing and not (skip_missing and kept):
        names = ", ".join(missing)
        hint = " Or leave such tasks out, with --skip-missing." if kept else ""
        raise UserError(
            f"the data of {names} must be there. {next(iter(missing.values()))}{hint}"
        )
    return kept, list(missing)
