"""Tuning the baselines: a grid that grows until the best is inside it."""

from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple, TypeAlias

import numpy as np
from jaxtyping import Array, Float, Key

from evaluation.baselines import (
    RATES_PER_DECADE,
    SCHEDULES,
    Candidate,
    Setting,
    first_rates,
    further_rates,
)
from evaluation.cache import Cache
from evaluation.runs import Curves, Runs, choose
from evaluation.statistics import final_losses, mean_losses
from evaluation.suites import Case

Metric: TypeAlias = Literal["mean", "final"]
METRICS: dict[Metric, Callable[[np.ndarray], np.ndarray]] = {
    "mean": mean_losses,
    "final": final_losses,
}
_MOST_ROUNDS = 4


class Tuned(NamedTuple):
    """Result of tuning an optimizer on a task.

    Attributes:
        candidate: The optimizer.
        rates: All learning rates that were tried, in order.
        losses: For each metric, the mean over seeds.
        num_rounds: 1 if the first grid was wide enough.
    """

    candidate: Candidate
    rates: Float[np.ndarray, " rates"]
    losses: dict[Metric, Float[np.ndarray, "rates schedules"]]
    num_rounds: int

    @property
    def name(self) -> str:
        """Name of the optimizer."""
        return self.candidate.name

    def best(self, metric: Metric) -> tuple[float, str]:
        """Returns the best learning rate and schedule."""
        rate, schedule = self._where(metric)
        return float(self.rates[rate]), SCHEDULES[schedule]

    def constant_rates(self, metric: Metric) -> Float[np.ndarray, " some"]:
        """Returns the constant learning rates near the best.

        A decade below it and two thirds of one above: on the tasks of `quick` no other
        was lowest at any step.
        """
        best = int(np.argmin(self.losses[metric][:, SCHEDULES.index("constant")]))
        below, above = RATES_PER_DECADE, RATES_PER_DECADE - 1
        return self.rates[max(best - below, 0) : best + above + 1]

    def edges(self) -> list[bool]:
        """Says on which sides the grid is too short: above or not, for each metric."""
        last = len(self.rates) - 1
        found = [self._where(metric)[0] for metric in METRICS]
        return sorted({rate == last for rate in found if rate in (0, last)})

    def _where(self, metric: Metric) -> tuple[int, int]:
        losses = self.losses[metric]
        rate, schedule = np.unravel_index(np.argmin(losses), losses.shape)
        return int(rate), int(schedule)


def tune(
    case: Case,
    candidates: Sequence[Candidate],
    keys: Key[Array, " seeds"],
    cache: Cache,
) -> list[Tuned]:
    """Runs every candidate at every learning rate with every schedule."""
    named = {candidate.name: candidate for candidate in candidates}
    rates = {name: [first_rates(named[name])] for name in named}
    curves: dict[str, list[Curves]] = {name: [] for name in named}
    waiting, found = list(named), {}
    for num_rounds in range(1, _MOST_ROUNDS + 1):
        groups = [_grid(named[name], rates[name][-1], keys) for name in waiting]
        for name, new in zip(
            waiting, cache.train(case.task, case.num_steps, groups), strict=True
        ):
            curves[name].append(new)
            found[name] = _tuned(
                named[name], rates[name], curves[name], len(keys), num_rounds
            )
        waiting = [name for name in waiting if found[name].edges()]
        for name in waiting:
            above = found[name].edges()[-1]
            rates[name].append(further_rates(found[name].rates, above=above))
        if not waiting:
            break
    return [found[name] for name in named]


def _grid(candidate: Candidate, rates: np.ndarray, keys: Key[Array, " seeds"]) -> Runs:
    """Returns a run for each learning rate, schedule and seed, the seed last."""
    shape = (len(rates), len(SCHEDULES), len(keys))
    spread = lambda x, axis: np.broadcast_to(
        np.expand_dims(x, [i for i in range(3) if i != axis]), shape
    ).ravel()
    settings = Setting(
        spread(rates, 0).astype(np.float32),
        spread(np.arange(len(SCHEDULES)), 1).astype(np.float32),
    )
    every = choose(keys, spread(np.arange(len(keys)), 2))
    return Runs(candidate.optimizer, candidate.with_settings(settings), every)


def _tuned(
    candidate: Candidate,
    rates: Sequence[np.ndarray],
    curves: Sequence[Curves],
    num_seeds: int,
    num_rounds: int,
) -> Tuned:
    every = np.concatenate(rates)
    order = np.argsort(every)
    losses = {}
    for metric, values in METRICS.items():
        each = np.concatenate([values(c.train_loss) for c in curves])
        by_rate = each.reshape(len(every), len(SCHEDULES), num_seeds)
        losses[metric] = by_rate.mean(axis=2)[order]
    return Tuned(candidate, every[order], losses, num_rounds)
