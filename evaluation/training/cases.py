"""Run optimizers and tuned baselines on the cases of a suite, with shared seeds."""

import functools
import platform
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Array, Float, Key

from evaluation.baselines import (
    BASELINES,
    Baseline,
    Setting,
    candidate,
    setting,
    tunable,
)
from evaluation.suites import Case
from evaluation.training.batched import Curves, Runs, select_keys
from evaluation.training.cache import Cache, name_of
from evaluation.training.cached import train_cached
from evaluation.training.costs import StepCost, Timer, prepare_gradient, prepare_update
from evaluation.training.grid_search import (
    METRICS,
    MOST_CONSTANT_RATES,
    Metric,
    Tuned,
    num_grid_runs,
    tune,
)
from evaluation.training.plan import REFERENCE, Bound, Contender, Plan, bind
from evaluation.training.work import Work, work_per_run
from lopt.base import LearnedOptimizer, Theta
from lopt.errors import UserError, lookup
from tasks.size import size

REFERENCE_EXTENSION = 3
"""Factor by which runs of the reference are extended, to measure speed-ups.

A speed-up is thus at most this factor.
"""


class Method(NamedTuple):
    """Results of an optimizer on one case.

    Attributes:
        curves: Evaluation runs at the setting tuned for each metric. An untuned
            optimizer has the same runs for all metrics.
        settings: Best learning rate and schedule for each metric; empty if the
            optimizer is not tuned.
        cost: Cost of an update; `None` if it was not measured.
    """

    curves: dict[Metric, Curves]
    settings: dict[Metric, tuple[float, str]]
    cost: StepCost | None = None


class CaseRuns(NamedTuple):
    """Results of all optimizers on one case.

    Attributes:
        case: The case.
        methods: Results of the contenders and baselines, by name.
        tuned: Tuning results of the baselines and tuned contenders, reference first.
        longer: Training losses of the reference at constant learning rates near the
            best one, for `REFERENCE_EXTENSION` times the number of steps.
        gradient: Cost of sampling a batch and computing its gradient.
    """

    case: Case
    methods: dict[str, Method]
    tuned: list[Tuned]
    longer: Float[np.ndarray, "rates seeds longer"]
    gradient: StepCost | None = None


def train_cases(
    contenders: Mapping[str, Contender],
    cases: Sequence[Case],
    plan: Plan,
    cache: Cache,
    report: Callable[[float, str], None] = lambda fraction, text: None,
) -> list[CaseRuns]:
    """Train every case with every contender and every baseline.

    Args:
        contenders: Optimizers by name. Those in `plan.tuned` are tuned, the others are
            run as given.
        cases: Tasks and their horizons.
        plan: Seeds, baselines and names of tuned contenders.
        cache: Cache of results.
        report: Callback with the completed fraction of all work and a short description
            of the current stage. It may be called from a worker thread.

    Returns:
        Results of each case, in the order of `cases`.

    Raises:
        UserError: If a contender has the name of a baseline, is not an optimizer, or is
            to be tuned without having a learning rate; or if a name is unknown.
    """
    for name in plan.baselines:
        lookup("baseline", name, BASELINES)
    if taken := sorted(set(contenders) & set(BASELINES)):
        raise UserError(
            "optimizers must not have the name of a baseline; got "
            f"{', '.join(taken)}. Try my-{taken[0]}."
        )
    bound = {name: bind(contender) for name, contender in contenders.items()}
    for name in plan.tuned:  # Validate before anything is trained.
        tunable(name, *lookup("optimizer", name, bound)(1))
    runs_per_case = sum(_num_runs(plan, len(bound)))
    work = Work(runs_per_case * sum(map(work_per_run, cases)), report)

    def one(case: Case) -> CaseRuns:
        now = {name: at(case.num_steps) for name, at in bound.items()}
        return _run_case(now, case, plan, cache, work)

    # Run two cases at a time: much of the work is compilation, which uses one core.
    pool = ThreadPoolExecutor(2)
    try:
        # Start the longest cases first, so that both threads finish at a similar time.
        longest = sorted(range(len(cases)), key=lambda i: -work_per_run(cases[i]))
        begun = {i: pool.submit(one, cases[i]) for i in longest}
        for done in wait(begun.values(), return_when=FIRST_EXCEPTION).done:
            done.result()
        found = [begun[i].result() for i in range(len(cases))]
        report(0.99, "measuring costs")
        found = _with_costs(found, bound, cache, pool)
        work.finish("done")
        return found
    except BaseException:
        # Threads stop at the next test evaluation of their runs.
        work.stop()
        raise
    finally:
        pool.shutdown(cancel_futures=True)


class _NumRuns(NamedTuple):
    """Number of runs of each stage of a case, in runs of the length of the case."""

    untuned: int
    tuning: int
    judged: int
    longer: int


def _num_runs(plan: Plan, num_contenders: int) -> _NumRuns:
    num_candidates = len({REFERENCE, *plan.baselines}) + len(plan.tuned)
    return _NumRuns(
        untuned=(num_contenders - len(plan.tuned)) * plan.num_seeds,
        tuning=num_grid_runs(num_candidates, plan.num_tuning_seeds),
        judged=num_candidates * len(METRICS) * plan.num_seeds,
        longer=REFERENCE_EXTENSION * MOST_CONSTANT_RATES * plan.num_seeds,
    )


def _run_case(
    bound: Mapping[str, Bound],
    case: Case,
    plan: Plan,
    cache: Cache,
    work: Work,
) -> CaseRuns:
    task, num_steps = case.task, case.num_steps
    num_runs = _num_runs(plan, len(bound))
    keys = plan.keys()
    methods: dict[str, Method] = {}
    untuned = {name: pair for name, pair in bound.items() if name not in plan.tuned}
    for name, (optimizer, theta) in untuned.items():
        advance = work.stage(case, name, len(keys))
        (curves,) = train_cached(
            task, num_steps, [_same(optimizer, theta, keys)], cache, advance
        )
        methods[name] = Method(dict.fromkeys(METRICS, curves), {})
    names = dict.fromkeys([REFERENCE, *plan.baselines])
    candidates = [candidate(name) for name in names]
    candidates += [tunable(name, *bound[name]) for name in plan.tuned]
    tuned = tune(case, candidates, plan.tuning_keys(), cache, work)
    advance = work.stage(case, "tuned baselines", num_runs.judged)
    groups = [_judged(t, keys) for t in tuned]
    judged = train_cached(task, num_steps, groups, cache, advance)
    for t, curves in zip(tuned, judged, strict=True):
        parts = [
            Curves(*(np.split(x, len(METRICS))[i] for x in curves))
            for i in range(len(METRICS))
        ]
        methods[t.name] = Method(
            dict(zip(METRICS, parts, strict=True)),
            {metric: t.best(metric) for metric in METRICS},
        )
    rates = tuned[0].constant_rates("final")
    advance = work.stage(case, f"{REFERENCE} for longer", num_runs.longer)
    (curves,) = train_cached(
        task, REFERENCE_EXTENSION * num_steps, [_longer(rates, keys)], cache, advance
    )
    losses = curves.train_loss.reshape(len(rates), -1, REFERENCE_EXTENSION * num_steps)
    ordered = {name: methods[name] for name in (*bound, *names)}
    return CaseRuns(case, ordered, tuned, losses)


def _same(optimizer: LearnedOptimizer, theta: Theta, keys: Key[Array, " n"]) -> Runs:
    """Make one run for each key, all with the same `theta`."""

    def repeat(x):
        return np.broadcast_to(x, (len(keys), *np.shape(x)))

    return Runs(optimizer, jax.tree.map(repeat, theta), keys)


def _judged(tuned: Tuned, keys: Key[Array, " n"]) -> Runs:
    """Make runs at the best setting for each metric: all keys of one metric first."""
    best = [setting(*tuned.best(metric)) for metric in METRICS]
    every = [np.repeat(np.stack(x), len(keys)) for x in zip(*best, strict=True)]
    thetas = tuned.candidate.with_settings(Setting(*every))
    return Runs(tuned.candidate.optimizer, thetas, _repeated(keys, len(best)))


def _longer(rates: np.ndarray, keys: Key[Array, " n"]) -> Runs:
    """Make runs of the reference for each constant learning rate and key."""
    every = np.repeat(rates, len(keys)).astype(np.float32)
    settings = Setting(every, np.zeros_like(every))
    return Runs(Baseline(REFERENCE), settings, _repeated(keys, len(rates)))


def _repeated(keys: Key[Array, " n"], num: int) -> Key[Array, " all"]:
    return select_keys(keys, np.tile(np.arange(len(keys)), num))


def _with_costs(
    found: Sequence[CaseRuns],
    bound: Mapping[str, Callable[[int], Bound]],
    cache: Cache,
    pool: ThreadPoolExecutor,
) -> list[CaseRuns]:
    """Add the costs of gradients and updates.

    Contenders and the reference are measured on all cases, the other baselines on the
    first case only.
    """
    requests: dict[Any, Callable[[], Timer]] = {}
    wanted: list[dict[str, Any]] = []

    def want(prepare: Callable[[], Timer], *parts: Any) -> Any:
        # A program without a cache key gets a unique placeholder and is not cached.
        name = name_of(platform.node(), *parts) or object()
        requests.setdefault(name, prepare)
        return name

    for case, methods, *_ in found:
        shapes = size(case.task).params
        sizes = [str(x) for x in jax.tree_util.tree_leaves_with_path(shapes)]
        # The empty name stands for the gradient.
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
            # The key has the machine, but neither the task nor theta, on which the
            # latency of an update does not depend.
            update = functools.partial(prepare_update, shapes, optimizer, theta)
            names[name] = want(update, "update", sizes, optimizer)
        wanted.append(names)
    costs = _measure(requests, cache, pool)
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
) -> dict[Any, StepCost]:
    def named(name):
        return name if isinstance(name, str) else None

    kept = {name: cache.get(named(name), StepCost) for name in requests}
    missing = [name for name, cost in kept.items() if cost is None]
    timers = list(pool.map(lambda name: requests[name](), missing))
    costs = {
        n: StepCost(*map(float, cost)) for n, cost in kept.items() if cost is not None
    }
    # Measure sequentially: concurrent work would distort the timings.
    for name, timer in zip(missing, timers, strict=True):
        costs[name] = timer()
        cache.put(named(name), costs[name])
    return costs
