"""Learning-rate schedule of an MLP on MNIST, figure 6."""

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from typing_extensions import override

from evaluation.paper import looks
from evaluation.paper.experiment import Experiment, conclude
from evaluation.paper.jobs import ES_AND_PES, surface, training
from evaluation.paper.records import is_lower, spread
from lopt.optimizers.classical import LearnedMomentum
from meta_train.core.inner_training import InnerTraining
from meta_train.core.measures import Measure
from meta_train.core.truncation import Truncation
from meta_train.outer.outer_optimizer import OuterAdam
from tasks.supervised.mlp import MLP

MEASURES: dict[str, Measure] = {"loss": "train-loss", "accuracy": "validation-error"}
THETA = ("theta/log_lr", "theta/log_power")


@dataclass(frozen=True)
class MnistLrSchedule(Experiment):
    """ES and PES on lr / (1 + t / Q)^power with momentum 0.9."""

    name = "mnist-lr-schedule"
    figure = "figure 6 (a) and (b)"
    claim = (
        "ES is biased and PES finds the right schedule, for K = 10 and K = 100, for "
        "the training loss and for the validation accuracy."
    )
    shows = "Surfaces over initial rate and decay, with trajectories."
    differs = (
        "The start and the ranges of the surface are ours, and there is no grid search "
        "over the outer learning rate (0.03). At the scale small: 784-16-16-10 MLP, "
        "batches of 32, T = Q = 500, eight pairs."
    )
    scales: ClassVar = {
        "smoke": {
            **{"num_seeds": 1, "dataset": "digits", "width": 4, "num_pairs": 2},
            **{"horizon": 20, "num_steps": 40, "num_grid": 2, "lengths": (10,)},
        },
        "small": {
            **{"width": 16, "batch_size": 32, "horizon": 500, "num_pairs": 8},
            **{"num_steps": 6_000, "num_grid": 9},
        },
        "paper": {},
    }
    minutes: ClassVar = {"smoke": 0.3, "small": 8, "paper": 40_000}

    dataset: str = "mnist"
    width: int = 100
    batch_size: int = 100
    horizon: int = 5_000
    lengths: tuple[int, ...] = (10, 100)
    num_pairs: int = 500
    std: float = 0.1
    learning_rate: float = 3e-2
    num_steps: int = 50_000
    num_grid: int = 21

    def _system(self, measure):
        start = {"initial_lr": 1e-3, "initial_power": 1.0, "fixed": ("logit_decay",)}
        optimizer = LearnedMomentum("log-power", power_horizon=self.horizon, **start)
        task = MLP(self.dataset, batch_size=self.batch_size, width=self.width)
        return InnerTraining(task, optimizer, MEASURES[measure])

    @override
    def jobs(self):
        fields = {"num_pairs": self.num_pairs, "std": self.std}
        configs = {
            f"{measure}/{name}, K = {k}": training(
                self._system(measure),
                kind(Truncation(k, self.horizon), **fields),
                OuterAdam(self.learning_rate, clip=None),
                self.num_steps // k,
                5,
            )
            for measure in MEASURES
            for k in self.lengths
            for name, kind in ES_AND_PES.items()
        }
        rates = np.linspace(math.log(1e-4), 0.0, self.num_grid)
        grid = (rates, np.linspace(math.log(0.1), math.log(30.0), self.num_grid))
        surfaces = [
            surface(f"surface-{name}", self._system(name), grid, self.horizon)
            for name in MEASURES
        ]
        return [*surfaces, *self.runs(configs)]

    @override
    def check(self, results):
        parts = []
        for measure in MEASURES:
            best = np.nanmin(np.asarray(results[f"surface-{measure}"]["losses"], float))
            for k in self.lengths:
                pes, es = (results.final(f"{measure}/{n}, K = {k}") for n in ES_AND_PES)
                text = f"{measure}, K = {k}: PES {spread(pes)}, ES {spread(es)}"
                parts.append((f"{text}, grid {best:.3g}", is_lower(pes, es)))
        return conclude(parts)

    @override
    def draw(self, results):
        figure, panels = looks.axes(2, size=4.6)
        for axis, (measure, label) in zip(panels, MEASURES.items(), strict=True):
            looks.surface(figure, axis, results[f"surface-{measure}"], label)
            for name in ES_AND_PES:
                for i, k in enumerate(self.lengths):
                    paths = results.path(f"{measure}/{name}, K = {k}", THETA)
                    style = looks.look(f"{name}, K = {k}", i)
                    looks.trajectories(axis, paths, style, f"{name}, K = {k}")
            axis.set(xlabel="log initial learning rate", ylabel="log decay exponent")
            looks.legend(axis, frameon=True)
        return figure
