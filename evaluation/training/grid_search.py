"""Grid search over learning rates and schedules.

The grid is extended, at most three times, until the best learning rate is inside it.
"""

from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple, TypeAlias

import numpy as np
from jaxtyping import Array, Float, Key

from evaluation.baselines import (
    NUM_RATES,
    RATES_PER_DECADE,
    SCHEDULES,
    Candidate,
    Setting,
    first_rates,
    further_rates,
)
from evaluation.statistics import final_losses, mean_losses
from evaluation.suites import Case
from evaluation.training.batched import Curves, Runs, select_keys
from evaluation.training.cache import Cache
from evaluation.training.cached import train_cached
from evaluation.training.work import Work

Metric: TypeAlias = Literal["mean", "final"]
METRICS: dict[Metric, Callable[[np.ndarray], np.ndarray]] = {
    "mean": mean_losses,
    "final": final_losses,
}
_MOST_ROUNDS = 4
MOST_CONSTANT_RATES = 2 * RATES_PER_DECADE
"""Maximum number of rates of `Tuned.constant_rates`."""


class Tuned(NamedTuple):
    """Result of tuning an optimizer on a task.

    Attributes:
        candidate: The optimizer.
        rates: All learning rates that were tried, ascending.
        losses: For each metric, the mean over seeds.
        num_rounds: Number of grids that were run; 1 if the initial grid was sufficient.
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
        """Best learning rate and schedule for a metric."""
        rate, schedule = self._where(metric)
        return float(self.rates[rate]), SCHEDULES[schedule]

    def constant_rates(self, metric: Metric) -> Float[np.ndarray, " some"]:
        """Learning rates near the best one for the constant schedule.

        They span a decade below it and two thirds of a decade above. On the tasks of
        the suite `quick`, no other rate had the lowest loss at any step.
        """
        best = int(np.argmin(self.losses[metric][:, SCHEDULES.index("constant")]))
        below, above = RATES_PER_DECADE, RATES_PER_DECADE - 1
        return self.rates[max(best - below, 0) : best + above + 1]

    def edges(self) -> list[bool]:
        """Find the edges of the grid at which the best rate of any metric lies.

        Returns:
            `False` for the lower edge and `True` for the upper edge, in this order;
            empty if the best rates of all metrics are in the interior.
        """
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
    work: Work,
) -> list[Tuned]:
    """Tune the learning rate and schedule of every candidate on a case.

    Args:
        case: Task and horizon.
        candidates: Optimizers to tune.
        keys: Keys of the tuning runs, used for every setting.
        cache: Cache of results.
        work: Progress of the evaluation, which plans for the initial grids.

    Returns:
        Tuning results in the order of `candidates`.
    """
    named = {candidate.name: candidate for candidate in candidates}
    rates = {name: [first_rates(named[name])] for name in named}
    curves: dict[str, list[Curves]] = {name: [] for name in named}
    waiting, found = list(named), {}
    for num_rounds in range(1, _MOST_ROUNDS + 1):
        groups = [_grid(named[name], rates[name][-1], keys) for name in waiting]
        advance = work.stage(
            case,
            "tuning" if num_rounds == 1 else f"tuning, grid {num_rounds}",
            num_grid_runs(len(waiting), len(keys)),
            is_planned=num_rounds == 1,
        )
        grids = train_cached(case.task, case.num_steps, groups, cache, advance)
        for name, new in zip(waiting, grids, strict=True):
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


def num_grid_runs(num_candidates: int, num_seeds: int) -> int:
    """Number of runs of one grid of each candidate."""
    return num_candidates * NUM_RATES * len(SCHEDULES) * num_seeds


def _grid(candidate: Candidate, rates: np.ndarray, keys: Key[Array, " seeds"]) -> Runs:
    """Make one run for each (learning rate, schedule, seed), in row-major order."""
    shape = (len(rates), len(SCHEDULES), len(keys))

    def spread(x, axis):
        return np.broadcast_to(
            np.expand_dims(x, [i for i in range(3) if i != axis]), shape
        ).ravel()

    settings = Setting(
        spread(rates, 0).astype(np.float32),
        spread(np.arange(len(SCHEDULES)), 1).astype(np.float32),
    )
    every = select_keys(keys, spread(np.arange(len(keys)), 2))
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
