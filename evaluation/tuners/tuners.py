"""Black-box tuners for the outer problem, as baselines for meta-training.

Black-box tuners see only losses, not meta-gradients. They unroll a fixed number of
episodes (slots) together, one truncation window at a time. A slot whose episode has
ended or was pruned is reset.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from typing_extensions import override

from evaluation.tuners.episodes import EpisodeBatch, OuterProblem
from lopt.errors import UserError
from meta_train.outer.trainer import Trainer
from tasks.base import Data, Theta


class Found(NamedTuple):
    """Intermediate result of a search.

    Attributes:
        num_steps: Inner steps so far.
        theta: Best outer parameters so far, according to the tuner.
    """

    num_steps: int
    theta: Theta


class Tuner(ABC):
    """Method that searches for a `theta` with low loss."""

    @abstractmethod
    def search(
        self, problem: OuterProblem, data: Data, budget: int, seed: int
    ) -> Iterator[Found]:
        """Search until the budget is spent, and yield the best `theta` so far.

        Args:
            problem: Outer problem.
            data: Data of `problem.system`.
            budget: Maximum number of inner steps, summed over episodes.
            seed: Random seed of the search.
        """


@dataclass(frozen=True)
class OptunaTuner(Tuner):
    """Optuna sampler, optionally with a pruner that stops episodes early.

    Only completed episodes count as results. Until the first one, the result is the
    center of the box.
    """

    sampler: Literal["random", "tpe", "gp"]
    """Optuna sampler that proposes the `theta` of each episode."""
    pruner: Literal["none", "halving", "hyperband"] = "none"
    """Optuna pruner that decides which episodes to stop early."""
    num_slots: int = 8
    """Number of concurrent episodes."""

    @override
    def search(
        self, problem: OuterProblem, data: Data, budget: int, seed: int
    ) -> Iterator[Found]:
        study = self._study(problem, seed)
        slots = EpisodeBatch(problem, data, self.num_slots, seed)
        optuna = _optuna()
        center = slots.center.astype(float)
        box = {
            f"theta{i}": optuna.distributions.FloatDistribution(c - r, c + r)
            for i, (c, r) in enumerate(
                zip(center, slots.radii.astype(float), strict=True)
            )
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
                # Samplers need finite values: report a diverged episode as worse than
                # all others.
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

    def _study(self, problem: OuterProblem, seed: int) -> Any:
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
            # Hyperband assigns trials to brackets by a hash of the study name, so a
            # random name would make results irreproducible.
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
        warnings.simplefilter("ignore")  # `GPSampler` is experimental and warns.
        return optuna.samplers.GPSampler(seed=seed)


@dataclass(frozen=True)
class PopulationBasedTraining(Tuner):
    """Population-based training (Jaderberg et al., 2017).

    After every window, the worst members copy the state and `theta` of random members
    among the best, and perturb the copied `theta` with Gaussian noise.
    """

    num_slots: int = 8
    """Number of members of the population."""
    share: float = 0.25
    """Fraction of members that are replaced, and of members that are copied."""
    move: float = 0.1
    """Standard deviation of the perturbation, in units of the radius of the box."""

    @override
    def search(
        self, problem: OuterProblem, data: Data, budget: int, seed: int
    ) -> Iterator[Found]:
        generator = np.random.default_rng(seed)
        slots = EpisodeBatch(problem, data, self.num_slots, seed)
        spread = generator.uniform(-1, 1, slots.thetas.shape) * slots.radii
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
            moved = slots.thetas[lagging] + self.move * slots.radii * moves
            slots.thetas[lagging] = slots.clip(moved)
            if slots.ages[0] == problem.num_windows:
                slots.restart(np.ones(slots.num, bool))


@dataclass(frozen=True)
class MetaTraining(Tuner):
    """Meta-training with a gradient estimator, for comparison with black-box tuners.

    `theta` is not restricted to the box of the problem. At least one outer update is
    made, even if it exceeds the budget.
    """

    trainer: Trainer
    """Trainer of a single system."""

    @override
    def search(
        self, problem: OuterProblem, data: Data, budget: int, seed: int
    ) -> Iterator[Found]:
        each = self.trainer.estimator.num_inner_steps
        trainer = replace(self.trainer, num_outer_steps=max(1, budget // each))
        state = trainer.init((data,), seed)
        at_once = max(1, trainer.num_outer_steps // 50)
        done = 0
        while done < trainer.num_outer_steps:
            num = min(at_once, trainer.num_outer_steps - done)
            state, _ = trainer.run((data,), state, num)
            done += num
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
