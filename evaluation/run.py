"""Runs optimizers and tuned baselines on a suite, from the same seeds."""

import functools
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import jax
import numpy as np
import optax
from jaxtyping import Array, Float, Key

import lopt
from evaluation.baselines import (
    KINDS,
    Baseline,
    Fixed,
    Setting,
    candidate,
    setting,
    tunable,
)
from evaluation.cache import Cache, name_of
from evaluation.costs import Cost, Timer, prepare_gradient, prepare_update
from evaluation.runs import Curves, Runs, choose
from evaluation.suites import Case
from evaluation.tuning import METRICS, Metric, Tuned, tune
from lopt.base import LearnedOptimizer, Theta
from lopt.errors import UserError, find
from tasks.size import size

REFERENCE = "adam"
LONGER = 3
"""The reference is trained for so many times as long, to see when it catches up."""

Bound: TypeAlias = tuple[LearnedOptimizer, Theta]
Contender: TypeAlias = (
    Bound
    | optax.GradientTransformation
    | Callable[[int], optax.GradientTransformation]
    | str
    | Path
)


class Plan(NamedTuple):
    """How an evaluation is run.

    Attributes:
        num_seeds: Runs of each optimizer on each task.
        num_tuning_seeds: Others, on which baselines are tuned.
        seed: Fixes them all.
        baselines: Which; the reference is always among them.
        tuned: Contenders that are tuned as the baselines are.
    """

    num_seeds: int = 20
    num_tuning_seeds: int = 3
    seed: int = 0
    baselines: tuple[str, ...] = tuple(KINDS)
    tuned: tuple[str, ...] = ()

    def keys(self) -> Key[Array, " seeds"]:
        """Returns the keys of runs that meta-training has never seen."""
        return self._keys(2**32 - 3, self.num_seeds)

    def tuning_keys(self) -> Key[Array, " seeds"]:
        """Returns those of other runs."""
        return self._keys(2**32 - 4, self.num_tuning_seeds)

    def _keys(self, number: int, num: int) -> Key[Array, " seeds"]:
        # Meta-training never folds these numbers in.
        key = jax.random.fold_in(jax.random.key(self.seed), number)
        return jax.random.split(key, num)


class Method(NamedTuple):
    """An optimizer on one case.

    Attributes:
        curves: Its runs, tuned for each metric.
        settings: Learning rate and schedule that were best for each metric; empty if
            it is no baseline.
        cost: Of its update; none if that was not measured.
    """

    curves: dict[Metric, Curves]
    settings: dict[Metric, tuple[float, str]]
    cost: Cost | None = None


class CaseRuns(NamedTuple):
    """All that was run on one case.

    Attributes:
        case: Which.
        methods: Contenders and baselines.
        tuned: How the baselines were tuned.
        longer: Losses of the reference at each learning rate, for longer.
        gradient: What the gradient costs.
    """

    case: Case
    methods: dict[str, Method]
    tuned: list[Tuned]
    longer: Float[np.ndarray, "rates seeds longer"]
    gradient: Cost | None = None


def num_stages(num_cases: int, num_contenders: int) -> int:
    """Returns how often `run` reports."""
    return num_cases * (num_contenders + 3) + 1


def run(
    contenders: Mapping[str, Contender],
    cases: Sequence[Case],
    plan: Plan,
    cache: Cache,
    report: Callable[[str], None] = lambda text: None,
) -> list[CaseRuns]:
    """Trains every case with every contender and every baseline.

    Args:
        contenders: Optimizers by name; those in `plan.tuned` are tuned.
        cases: What they are run on.
        plan: With which seeds and against which baselines.
        cache: Where results are kept.
        report: Is told what has been done, in a few words.
    """
    for name in plan.baselines:
        find("baseline", name, KINDS)
    if taken := sorted(set(contenders) & set(KINDS)):
        raise UserError(
            "optimizers must not have the name of a baseline; got "
            f"{', '.join(taken)}. Try my-{taken[0]}."
        )
    bound = {name: bind(contender) for name, contender in contenders.items()}
    for name in plan.tuned:  # before anything is trained
        tunable(name, *find("optimizer", name, bound)(1))
    stop = threading.Event()

    def one(case: Case) -> CaseRuns:
        def done(what: str) -> None:
            if stop.is_set():
                raise InterruptedError
            report(f"{case.name}: {what}")

        now = {name: at(case.num_steps) for name, at in bound.items()}
        return _run_case(now, case, plan, cache, done)

    # Two at a time: much of the work is compiling, which keeps one core busy.
    pool = ThreadPoolExecutor(2)
    try:
        # The longest first, so that no core is left alone with one in the end.
        longest = sorted(range(len(cases)), key=lambda i: -_work(cases[i]))
        begun = {i: pool.submit(one, cases[i]) for i in longest}
        for done in wait(begun.values(), return_when=FIRST_EXCEPTION).done:
            done.result()
        found = [begun[i].result() for i in range(len(cases))]
        return _with_costs(found, bound, cache, pool, report)
    except BaseException:
        stop.set()  # what is being computed is kept, and nothing else is begun
        raise
    finally:
        pool.shutdown(cancel_futures=True)


def _work(case: Case) -> float:
    return case.num_steps * np.nan_to_num(size(case.task).flops)


def bind(contender: Contender) -> Callable[[int], Bound]:
    """Returns what a contender is, given the number of steps of a run."""
    if isinstance(contender, str | Path):
        loaded = lopt.load_theta(contender)
        return lambda num_steps: loaded
    if isinstance(contender, optax.GradientTransformation):
        return lambda num_steps: (Fixed(contender), ())
    if isinstance(contender, tuple) and isinstance(contender[0], LearnedOptimizer):
        return lambda num_steps: contender
    if callable(contender):
        return lambda num_steps: (Fixed(contender(num_steps)), ())
    raise UserError(
        "an optimizer must be an optax transformation, a function from the number of "
        "steps to one, a pair of a learned optimizer and its theta, or a file; got "
        f"{type(contender).__name__}."
    )


def _run_case(
    bound: Mapping[str, Bound],
    case: Case,
    plan: Plan,
    cache: Cache,
    done: Callable[[str], None],
) -> CaseRuns:
    task, num_steps = case.task, case.num_steps
    keys = plan.keys()
    methods: dict[str, Method] = {}
    untuned = {name: pair for name, pair in bound.items() if name not in plan.tuned}
    for name, (optimizer, theta) in untuned.items():
        (curves,) = cache.train(task, num_steps, [_same(optimizer, theta, keys)])
        methods[name] = Method(dict.fromkeys(METRICS, curves), {})
        done(name)
    names = dict.fromkeys([REFERENCE, *plan.baselines])
    candidates = [candidate(name) for name in names]
    candidates += [tunable(name, *bound[name]) for name in plan.tuned]
    tuned = tune(case, candidates, plan.tuning_keys(), cache)
    done("tuned baselines")
    judged = cache.train(task, num_steps, [_judged(t, keys) for t in tuned])
    for t, curves in zip(tuned, judged, strict=True):
        parts = [
            Curves(*(np.split(x, len(METRICS))[i] for x in curves))
            for i in range(len(METRICS))
        ]
        methods[t.name] = Method(
            dict(zip(METRICS, parts, strict=True)),
            {metric: t.best(metric) for metric in METRICS},
        )
    for name in plan.tuned:
        done(name)
    done("baselines")
    rates = tuned[0].constant_rates("final")
    (curves,) = cache.train(task, LONGER * num_steps, [_longer(rates, keys)])
    losses = curves.train_loss.reshape(len(rates), -1, LONGER * num_steps)
    done(f"{REFERENCE} for longer")
    ordered = {name: methods[name] for name in (*bound, *names)}
    return CaseRuns(case, ordered, tuned, losses)


def _same(optimizer: LearnedOptimizer, theta: Theta, keys: Key[Array, " n"]) -> Runs:
    """Returns a run for each key, all with the same theta."""
    repeat = lambda x: np.broadcast_to(x, (len(keys), *np.shape(x)))
    return Runs(optimizer, jax.tree.map(repeat, theta), keys)


def _judged(tuned: Tuned, keys: Key[Array, " n"]) -> Runs:
    """Runs at the best settings, one metric after the other."""
    best = [setting(*tuned.best(metric)) for metric in METRICS]
    every = [np.repeat(np.stack(x), len(keys)) for x in zip(*best, strict=True)]
    thetas = tuned.candidate.with_settings(Setting(*every))
    return Runs(tuned.candidate.optimizer, thetas, _repeated(keys, len(best)))


def _longer(rates: np.ndarray, keys: Key[Array, " n"]) -> Runs:
    """Returns runs of the reference at each learning rate, constant, from each key."""
    every = np.repeat(rates, len(keys)).astype(np.float32)
    settings = Setting(every, np.zeros_like(every))
    return Runs(Baseline(REFERENCE), settings, _repeated(keys, len(rates)))


def _repeated(keys: Key[Array, " n"], num: int) -> Key[Array, " all"]:
    return choose(keys, np.tile(np.arange(len(keys)), num))


def _with_costs(
    found: Sequence[CaseRuns],
    bound: Mapping[str, Callable[[int], Bound]],
    cache: Cache,
    pool: ThreadPoolExecutor,
    report: Callable[[str], None],
) -> list[CaseRuns]:
    """Adds what each step takes: of all on the first case, of the compared on all."""
    requests: dict[Any, Callable[[], Timer]] = {}
    wanted: list[dict[str, Any]] = []

    def want(prepare: Callable[[], Timer], *parts: Any) -> Any:
        # What cannot be named is prepared each time.
        name = name_of(*parts) or object()
        requests.setdefault(name, prepare)
        return name

    for case, methods, *_ in found:
        shapes = size(case.task).params
        sizes = [str(x) for x in jax.tree_util.tree_leaves_with_path(shapes)]
        # The gradient has no name.
        gradient = functools.partial(prepare_gradient, case.task, shapes)
        names = {"": want(gradient, "gradient", case.task)}
        for name, method in methods.items():
            if name in bound:
                optimizer, theta = bound[name](case.num_steps)
            elif name == REFERENCE or case is found[0].case:
                optimizer = Baseline(name)
                theta = setting(*method.settings["final"])
            else:
                continue
            # Neither the task nor theta decide how long an update takes.
            update = functools.partial(prepare_update, shapes, optimizer, theta)
            names[name] = want(update, "update", sizes, optimizer)
        wanted.append(names)
    costs = _measure(requests, cache, pool)
    report("costs")
    return [
        runs._replace(
            gradient=costs[names[""]],
            methods={
                name: method._replace(cost=costs.get(names.get(name)))
                for name, method in runs.methods.items()
            },
        )
        for runs, names in zip(found, wanted, strict=True)
    ]


def _measure(
    requests: Mapping[Any, Callable[[], Timer]], cache: Cache, pool: ThreadPoolExecutor
) -> dict[Any, Cost]:
    named = lambda name: name if isinstance(name, str) else None
    kept = {name: cache.get(named(name), Cost) for name in requests}
    missing = [name for name, cost in kept.items() if cost is None]
    timers = list(pool.map(lambda name: requests[name](), missing))
    costs = {n: Cost(*map(float, cost)) for n, cost in kept.items() if cost is not None}
    # One after the other: nothing else may run while time is taken.
    for name, timer in zip(missing, timers, strict=True):
        costs[name] = timer()
        cache.put(named(name), costs[name])
    return costs
