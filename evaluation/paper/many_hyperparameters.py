"""29 hyperparameters of an MLP on Fashion-MNIST, figure 7."""

import functools
from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import numpy as np
from scipy.special import logit
from typing_extensions import override

from evaluation.paper import looks
from evaluation.paper.experiment import Experiment, conclude
from evaluation.paper.jobs import ES_AND_PES, training
from evaluation.paper.records import is_lower, spread
from evaluation.tuners.episodes import OuterProblem
from evaluation.tuners.judge import judge
from evaluation.tuners.tuners import TUNERS
from lopt.optimizers.classical import LearnedMomentum
from meta_train.core.inner_training import InnerTraining
from meta_train.core.truncation import Truncation
from meta_train.outer.outer_optimizer import OuterAdam
from tasks.families.masked_mlp import MaskedMLP

SEARCHES = {"random search": "random", "TPE": "tpe", "Hyperband": "hyperband"}


@dataclass(frozen=True)
class ManyHyperparameters(Experiment):
    """Rates and momenta of 12 tensors, and 5 numbers of units, at equal compute."""

    name = "many-hyperparameters"
    figure = "figure 7"
    claim = "PES ends below ES and random search at equal numbers of inner steps."
    shows = "Best meta-objective so far over inner steps, mean and range of four seeds."
    differs = (
        "The last active unit of a layer has a fractional mask. TPE and Hyperband are "
        "added, in the box of the random search. At the scale small: at most 32 units, "
        "batches of 32, T = 200, 100,000 inner steps."
    )
    scales: ClassVar = {
        "smoke": {
            **{"num_seeds": 1, "dataset": "digits", "width": 4, "batch_size": 8},
            **{"horizon": 20, "num_steps": 800},
        },
        "small": {"width": 32, "batch_size": 32, "horizon": 200, "num_steps": 100_000},
        "paper": {},
    }
    minutes: ClassVar = {"smoke": 0.5, "small": 10, "paper": 3_000}
    modules: ClassVar = {"optuna": "tuners"}

    num_seeds: int = 4
    dataset: str = "fashion-mnist"
    width: int = 100
    batch_size: int = 100
    horizon: int = 1_000
    num_pairs: int = 5
    std: float = 0.3
    learning_rate: float = 1e-2
    num_steps: int = 5_000_000

    @property
    def _system(self):
        sizes: Any = {"batch_size": self.batch_size, "width": self.width, "depth": 5}
        ranges: Any = {"lr_range": (1e-4, 1e-2), "decay_range": (0.01, 0.9)}
        task = MaskedMLP(self.dataset, **sizes)
        momentum = LearnedMomentum(num_blocks=12, **ranges)
        return InnerTraining(task, momentum, "validation-loss")

    @override
    def jobs(self):
        window, configs = Truncation(10, self.horizon), {}
        for name, kind in ES_AND_PES.items():
            estimator = kind(window, num_pairs=self.num_pairs, std=self.std)
            num = int(self.num_steps / estimator.num_inner_steps)
            optimizer, points = OuterAdam(self.learning_rate, clip=None), (8, 10)
            configs[name] = training(self._system, estimator, optimizer, num, *points)
        jobs = self.runs(configs)
        for name, tuner in SEARCHES.items():
            jobs += self.repeats(name, functools.partial(self._search, tuner))
        return jobs

    def _search(self, tuner, seed):
        # In the order of the flattened theta: rates, momenta, units.
        low = (float(np.log(1e-8)),) * 12 + (float(logit(0.01)),) * 17
        high = (float(np.log(10.0)),) * 12 + (float(logit(0.999)),) * 17
        problem = OuterProblem(self._system, self.horizon, low=low, high=high)
        data, key = problem.system.load(), jax.random.key(0)
        found = TUNERS[tuner].search(problem, data, self.num_steps, seed)
        return judge(problem, data, list(found), 10, key)

    def _curves(self, results, name):
        found, keys = results.of(name), ("num_steps", "losses")
        if name in ES_AND_PES:
            found, keys = [f["metrics"] for f in found], ("inner_steps", "meta_loss")
        steps, losses = (np.asarray([f[k] for f in found], float) for k in keys)
        losses = np.nan_to_num(losses, nan=np.inf)
        return steps[0], np.minimum.accumulate(losses, axis=1)

    @override
    def check(self, results):
        ends = {name: self._curves(results, name)[1][:, -1] for name in self.methods}
        pes = ends.pop("PES")
        parts = [
            (f"PES {spread(pes)} below {n} {spread(ends[n])}", is_lower(pes, ends[n]))
            for n in ("ES", "random search")
        ]
        parts += [(f"{n} {spread(ends[n])}", True) for n in ("TPE", "Hyperband")]
        return conclude(parts)

    @override
    def draw(self, results):
        figure, (axis,) = looks.axes(1, size=5.2)
        for name in self.methods:
            steps, losses = self._curves(results, name)
            looks.curve(axis, steps, losses, looks.look(name), name)
        axis.set(xlabel="inner steps of all particles", ylabel="best meta-objective")
        looks.legend(axis)
        return figure
