"""Black-box tuners on the outer problem: theta searched for by its losses alone.

Every tuner spends its inner steps in a number of slots that are unrolled side by side,
a window at a time. A slot whose episode is over, or given up, begins another.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from typing_extensions import override

from evaluation.slots import Problem, Slots
from lopt.errors import UserError
from meta_train.trainer import Trainer
from tasks.base import Data, Theta


class Found(NamedTuple):
    """What a tuner holds for the best after so many inner steps."""

    num_steps: int
    theta: Theta


class Tuner(ABC):
    """Searches for a theta with low loss."""

    @abstractmethod
    def search(
        self, problem: Problem, data: Data, budget: int, seed: int
    ) -> Iterator[Found]:
        """Yields what is best so far, until `budget` inner steps are spent."""


@dataclass(frozen=True)
class OptunaTuner(Tuner):
    """A sampler of Optuna, with or without a pruner that gives episodes up."""

    sampler: Literal["random", "tpe", "gp"]
    """Where the next episode is begun."""
    pruner: Literal["none", "halving", "hyperband"] = "none"
    """Which episodes are given up early."""
    num_slots: int = 8
    """Episodes that run at the same time."""

    @override
    def search(
        self, problem: Problem, data: Data, budget: int, seed: int
    ) -> Iterator[Found]:
        study = self._study(problem, seed)
        slots = Slots(problem, data, self.num_slots, seed)
        center, radius = np.asarray(slots.center), problem.radius
        optuna = _optuna()
        box = {
            f"theta{i}": optuna.distributions.FloatDistribution(c - radius, c + radius)
            for i, c in enumerate(center.astype(float))
        }
        trials: list[Any] = [None] * slots.num

        def begin(i: int) -> None:
            trials[i] = study.ask(box)
            slots.thetas[i] = [trials[i].params[name] for name in box]

        for i in range(slots.num):
            begin(i)
        slots.restart(np.ones(slots.num, bool))
        best, worst = (np.inf, slots.theta(center)), 0.0
        while slots.num_steps + slots.num * problem.window <= budget:
            slots.advance()
            over = np.zeros(slots.num, bool)
            for i, trial in enumerate(trials):
                value = slots.totals[i] / slots.ages[i]
                worst = max(worst, abs(value) if np.isfinite(value) else 0.0)
                # Samplers want numbers; a diverged episode is worse than all others.
                told = float(value if np.isfinite(value) else 10 * worst + 1.0)
                trial.report(told, int(slots.ages[i]))
                if slots.ages[i] == problem.num_windows:
                    over[i] = True
                    study.tell(trial, told)
                    if value < best[0]:
                        best = value, slots.theta(slots.thetas[i])
                elif not np.isfinite(value) or trial.should_prune():
                    over[i] = True
                    study.tell(trial, state=optuna.trial.TrialState.PRUNED)
            yield Found(slots.num_steps, best[1])
            for i in np.flatnonzero(over).tolist():
                begin(i)
            if over.any():
                slots.restart(over)

    def _study(self, problem: Problem, seed: int) -> Any:
        optuna = _optuna()
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        samplers = {
            "random": lambda: optuna.samplers.RandomSampler(seed),
            "tpe": lambda: optuna.samplers.TPESampler(seed=seed, constant_liar=True),
            "gp": lambda: _gaussian_process(optuna, seed),
        }
        pruners = {
            "none": lambda: optuna.pruners.NopPruner(),
            "halving": lambda: optuna.pruners.SuccessiveHalvingPruner(
                reduction_factor=3
            ),
            "hyperband": lambda: optuna.pruners.HyperbandPruner(
                max_resource=problem.num_windows, reduction_factor=3
            ),
        }
        return optuna.create_study(
            # Hyperband shares out trials by it: a random name gives other results.
            study_name="lopt",
            sampler=samplers[self.sampler](),
            pruner=pruners[self.pruner](),
        )


def _optuna() -> Any:
    try:
        import optuna
    except ImportError as error:
        raise UserError(
            "black-box tuners need Optuna, which is not installed. Try "
            'pip install "lopt[tuners]", or --tuners pbt.'
        ) from error
    return optuna


def _gaussian_process(optuna: Any, seed: int) -> Any:
    import importlib.util

    if importlib.util.find_spec("torch") is None:
        raise UserError(
            "Optuna's Gaussian process needs torch, which is not installed. Try "
            'pip install "lopt[tuners]", or --tuners random tpe halving hyperband pbt.'
        )
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that it is experimental
        return optuna.samplers.GPSampler(seed=seed)


@dataclass(frozen=True)
class PopulationBasedTraining(Tuner):
    """Members that lag copy one that leads, and move its theta a little."""

    num_slots: int = 8
    """Members."""
    share: float = 0.25
    """Of the members, how many lag, and how many lead."""
    move: float = 0.1
    """Standard deviation of a move, in units of the box's radius."""

    @override
    def search(
        self, problem: Problem, data: Data, budget: int, seed: int
    ) -> Iterator[Found]:
        generator = np.random.default_rng(seed)
        slots = Slots(problem, data, self.num_slots, seed)
        spread = generator.uniform(-1, 1, slots.thetas.shape) * problem.radius
        slots.thetas = (slots.thetas + spread).astype(slots.thetas.dtype)
        slots.restart(np.ones(slots.num, bool))
        few = max(1, round(self.share * slots.num))
        while slots.num_steps + slots.num * problem.window <= budget:
            losses = slots.advance()
            order = np.argsort(losses)
            yield Found(slots.num_steps, slots.theta(slots.thetas[order[0]]))
            source = np.arange(slots.num)
            source[order[-few:]] = generator.choice(order[:few], few)
            slots.copy(source)
            lagging = order[-few:]
            moves = generator.normal(size=(few, slots.thetas.shape[1]))
            moved = slots.thetas[lagging] + self.move * problem.radius * moves
            slots.thetas[lagging] = slots.clip(moved)
            if slots.ages[0] == problem.num_windows:
                slots.restart(np.ones(slots.num, bool))


@dataclass(frozen=True)
class MetaTraining(Tuner):
    """What is not a black box: the outer updates of a trainer, for comparison."""

    trainer: Trainer
    """Of the one system."""

    @override
    def search(
        self, problem: Problem, data: Data, budget: int, seed: int
    ) -> Iterator[Found]:
        each = self.trainer.estimator.num_inner_steps
        trainer = replace(self.trainer, num_outer_steps=max(1, budget // each))
        state = trainer.init((data,), seed)
        at_once = max(1, trainer.num_outer_steps // 50)
        for done in range(at_once, trainer.num_outer_steps + 1, at_once):
            state, _ = trainer.run((data,), state, at_once)
            yield Found(int(done * each), jax.tree.map(jnp.copy, state.theta))


TUNERS: dict[str, Tuner] = {
    "random": OptunaTuner("random"),
    "tpe": OptunaTuner("tpe"),
    "gp": OptunaTuner("gp"),
    "halving": OptunaTuner("random", "halving"),
    "hyperband": OptunaTuner("tpe", "hyperband"),
    "pbt": PopulationBasedTraining(),
}
"""Black-box tuners by name."""
