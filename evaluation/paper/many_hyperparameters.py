"""29 hyperparameters of an MLP on Fashion-MNIST, figure 7."""

from dataclasses import dataclass
from typing import ClassVar

import jax
import numpy as np
from scipy.special import logit
from typing_extensions import override

from evaluation.paper import looks
from evaluation.paper.experiment import Experiment, Job, conclude, training
from evaluation.paper.records import is_lower, spread
from evaluation.tuners.episodes import OuterProblem
from evaluation.tuners.judge import judge
from evaluation.tuners.tuners import TUNERS
from lopt.optimizers.classical import LearnedMomentum
from meta_train.core.inner_training import InnerTraining
from meta_train.core.truncation import Truncation
from meta_train.estimators import PES, TruncatedES
from meta_train.outer.outer_optimizer import OuterAdam
from tasks.families.masked_mlp import MaskedMLP

KINDS = {"PES": PES, "ES": TruncatedES}
SEARCHES = {"random search": "random", "TPE": "tpe", "Hyperband": "hyperband"}


@dataclass(frozen=True)
class ManyHyperparameters(Experiment):
    """Rates and momenta of 12 tensors, and 5 numbers of units, at equal compute."""

    name = "many-hyperparameters"
    figure = "figure 7"
    claim = "PES ends below ES and random search at equal numbers of inner steps."
    shows = "Best meta-objective so far over inner steps, mean and range of four seeds."
    differs = (
        "The last active unit of a layer has a fractional mask. TPE and Hyperband "
        "(Optuna) are added, in the box of the random search. At the scale small: at "
        "most 32 units, batches of 32, T = 200, 100,000 inner steps."
    )
    scales: ClassVar = {
        "smoke": {
            **{"num_seeds": 1, "dataset": "digits", "width": 4, "batch_size": 8},
            **{"horizon": 20, "num_inner_steps": 800, "num_points": 1},
        },
        "small": {
            **{"width": 32, "batch_size": 32, "horizon": 200, "num_points": 8},
            "num_inner_steps": 100_000,
        },
        "paper": {},
    }
    minutes: ClassVar = {"smoke": 0.5, "small": 10, "paper": 3_000}
    modules: ClassVar = {"optuna": "tuners"}

    num_seeds: int = 4
    dataset: str = "fashion-mnist"
    width: int = 100
    batch_size: int = 100
    horizon: int = 1_000
    length: int = 10
    num_pairs: int = 5
    std: float = 0.3
    learning_rate: float = 1e-2
    num_inner_steps: int = 5_000_000
    num_points: int = 20

    @property
    def _system(self):
        task = MaskedMLP(
            self.dataset, batch_size=self.batch_size, width=self.width, depth=5
        )
        ranges = {"lr_range": (1e-4, 1e-2), "decay_range": (0.01, 0.9)}
        return InnerTraining(
            task, LearnedMomentum(num_blocks=12, **ranges), "validation-loss"
        )

    @override
    def jobs(self):
        window = Truncation(self.length, self.horizon)
        configs = {}
        for name, kind in KINDS.items():
            estimator = kind(window, num_pairs=self.num_pairs, std=self.std)
            configs[name] = training(
                self._system,
                estimator,
                OuterAdam(self.learning_rate, clip=None),
                int(self.num_inner_steps / estimator.num_inner_steps),
                num_points=self.num_points,
                num_evaluation_runs=10,
            )
        searches = [
            Job(f"{name}/seed-{seed}", lambda t=tuner, s=seed: self._search(t, s))
            for name, tuner in SEARCHES.items()
            for seed in range(self.num_seeds)
        ]
        return [*self.runs(configs), *searches]

    def _search(self, tuner, seed):
        # In the order of the flattened theta: rates, momenta, units.
        low = (np.log(1e-8),) * 12 + (logit(0.01),) * 17
        high = (np.log(10.0),) * 12 + (logit(0.999),) * 17
        box = {"low": tuple(map(float, low)), "high": tuple(map(float, high))}
        problem = OuterProblem(self._system, self.horizon, **box)
        data, key = problem.system.load(), jax.random.key(0)
        found = TUNERS[tuner].search(problem, data, self.num_inner_steps, seed)
        return judge(problem, data, list(found), 10, key, num_points=self.num_points)

    def _curves(self, results, name):
        """Inner steps and the best meta-loss so far of each seed."""
        if name in KINDS:
            steps = results.curve(name, "inner_steps")[1][0]
            losses = results.curve(name)[1]
        else:
            steps = np.asarray(results.of(name)[0]["num_steps"], float)
            losses = np.asarray([found["losses"] for found in results.of(name)], float)
        return steps, np.minimum.accumulate(np.nan_to_num(losses, nan=np.inf), axis=1)

    @override
    def check(self, results):
        names = [*KINDS, *SEARCHES]
        ends = {name: self._curves(results, name)[1][:, -1] for name in names}
        return conclude(
            [(f"PES ends at {spread(ends['PES'])}", True)]
            + [
                (
                    f"below {name}, {spread(ends[name])}",
                    is_lower(ends["PES"], ends[name]),
                )
                for name in ("ES", "random search")
            ]
            + [(f"{n} {spread(ends[n])}", True) for n in ("TPE", "Hyperband")]
        )

    @override
    def draw(self, results):
        figure, (axis,) = looks.axes(1, size=5.2)
        for name in (*KINDS, *SEARCHES):
            steps, losses = self._curves(results, name)
            looks.curve(axis, steps, losses, looks.look(name), name)
        axis.set(xlabel="inner steps of all particles", ylabel="best meta-objective")
        looks.legend(axis)
        return figure
