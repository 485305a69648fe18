"""Final loss by telescoping on Fashion-MNIST, appendix C."""

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from typing_extensions import override

from evaluation.paper import looks
from evaluation.paper.experiment import Experiment, conclude
from evaluation.paper.jobs import surface, training
from evaluation.paper.records import is_lower, spread
from lopt.optimizers.classical import LearnedSGD
from meta_train.core.inner_training import InnerTraining
from meta_train.core.objectives import FinalLoss
from meta_train.core.truncation import Truncation
from meta_train.estimators import PES
from meta_train.outer.outer_optimizer import OuterAdam
from tasks.supervised.mlp import MLP

OBJECTIVES = ("mean", "final")
THETA = ("theta/log_lr", "theta/log_last_lr")


@dataclass(frozen=True)
class Telescoping(Experiment):
    """Exponential schedules that minimize the sum of losses, or the final loss."""

    name = "telescoping"
    figure = "appendix C"
    claim = (
        "Telescoping for the final loss finds another exponential schedule than the "
        "one that minimizes the sum of losses."
    )
    shows = "Surface of the final loss over the two rates, with a trajectory."
    differs = (
        "Perturbations and outer optimizer are not in the paper: std 0.3, Adam 0.03. "
        "At the scale small: 784-16-16-10 MLP, batches of 32, T = 500, N = 20."
    )
    scales: ClassVar = {
        "smoke": {
            **{"num_seeds": 1, "dataset": "digits", "width": 4, "batch_size": 8},
            **{"horizon": 20, "length": 10, "num_outer_steps": 4, "num_grid": 2},
        },
        "small": {
            **{"width": 16, "batch_size": 32, "horizon": 500, "num_pairs": 10},
            **{"num_outer_steps": 600, "num_grid": 13},
        },
        "paper": {},
    }
    minutes: ClassVar = {"smoke": 0.2, "small": 5, "paper": 2_000}

    dataset: str = "fashion-mnist"
    width: int = 100
    batch_size: int = 100
    horizon: int = 5_000
    length: int = 20
    num_pairs: int = 50
    std: float = 0.3
    learning_rate: float = 3e-2
    num_outer_steps: int = 5_000
    num_grid: int = 21

    @property
    def _system(self):
        task = MLP(self.dataset, self.batch_size, width=self.width)
        return InnerTraining(task, LearnedSGD("exponential", initial_lr=0.03))

    @override
    def jobs(self):
        window = Truncation(self.length, self.horizon)
        configs = {
            objective: training(
                self._system,
                PES(window, num_pairs=self.num_pairs, std=self.std),
                OuterAdam(self.learning_rate, clip=None),
                self.num_outer_steps,
                10,
                8,
                objective=objective,
            )
            for objective in OBJECTIVES
        }
        axis = np.linspace(math.log(1e-3), math.log(3.0), self.num_grid)
        grid = surface(
            "surface", FinalLoss(self._system), (axis, axis), self.horizon, 2
        )
        return [grid, *self.runs(configs)]

    @override
    def check(self, results):
        first, last = ({o: results.tail(o, x, 0.2) for o in OBJECTIVES} for x in THETA)
        start, end = ({o: spread(np.exp(x[o])) for o in x} for x in (first, last))
        rates = "; ".join(f"{o}: {start[o]} to {end[o]}" for o in OBJECTIVES)
        change = [last[o] - first[o] for o in OBJECTIVES]
        differs = True in (is_lower(*change), is_lower(*change[::-1]))
        axes, losses = map(np.asarray, results["surface"].values())

        def final_loss(objective):
            ends = zip(axes, (first[objective], last[objective]), strict=True)
            rows = tuple(abs(axis - end[:, None]).argmin(axis=1) for axis, end in ends)
            return losses.astype(float)[rows]

        ours, theirs = final_loss("final"), final_loss("mean")
        text = f"final loss at the nearest grid points {spread(ours)}, with the sum"
        lowest = (f"{text} {spread(theirs)}", is_lower(ours, theirs))
        return conclude([(f"rates for {rates}, different", differs or None), lowest])

    @override
    def draw(self, results):
        figure, (axis,) = looks.axes(1, size=5.0)
        looks.surface(figure, axis, results["surface"], "final training loss")
        for i, objective in enumerate(OBJECTIVES):
            style, label = looks.shade(1.0 - i, i), f"PES on the {objective} loss"
            looks.trajectories(axis, results.path(objective, THETA), style, label)
        axis.set(xlabel="log initial learning rate", ylabel="log final learning rate")
        looks.legend(axis, frameon=True)
        return figure
