"""Final loss by telescoping on Fashion-MNIST, appendix C."""

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from typing_extensions import override

from evaluation.paper import looks
from evaluation.paper.experiment import Experiment, conclude, surface, training
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
    shows = "Surface of the final training loss over the two rates, with a trajectory."
    differs = (
        "Perturbations and outer optimizer are not in the paper: std 0.3, Adam 0.03. "
        "At the scale small: 784-16-16-10 MLP, batches of 32, T = 500, N = 20."
    )
    scales: ClassVar = {
        "smoke": {
            **{"num_seeds": 1, "dataset": "digits", "width": 4, "batch_size": 8},
            **{"horizon": 20, "length": 10, "num_pairs": 2, "num_outer_steps": 4},
            **{"num_grid": 2, "num_points": 1, "num_runs": 2},
        },
        "small": {
            **{"width": 16, "batch_size": 32, "horizon": 500, "num_pairs": 10},
            **{"num_outer_steps": 600, "num_grid": 13, "num_points": 5, "num_runs": 8},
        },
        "paper": {},
    }
    minutes: ClassVar = {"smoke": 0.2, "small": 5, "paper": 10_000}

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
    num_points: int = 20
    num_runs: int = 16

    @property
    def _system(self):
        task = MLP(self.dataset, batch_size=self.batch_size, width=self.width)
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
                num_points=self.num_points,
                num_evaluation_runs=self.num_runs,
                objective=objective,
            )
            for objective in OBJECTIVES
        }
        axis = np.linspace(math.log(1e-3), math.log(3.0), self.num_grid)
        final = FinalLoss(self._system)
        grid = surface("surface", final, (axis, axis), self.horizon, 2)
        return [grid, *self.runs(configs)]

    @override
    def check(self, results):
        first, last = (
            {o: results.tail(o, name, 0.2) for o in OBJECTIVES} for name in THETA
        )
        rates = "; ".join(
            f"{o}: {spread(np.exp(first[o]))} to {spread(np.exp(last[o]))}"
            for o in OBJECTIVES
        )
        # Logarithm of the last over the first rate.
        change = {o: last[o] - first[o] for o in OBJECTIVES}
        higher = is_lower(change["mean"], change["final"])
        lower = is_lower(change["final"], change["mean"])
        axes, losses = map(np.asarray, results["surface"].values())

        def final_loss(objective):
            rows, columns = (
                abs(axis[None] - ends[objective][:, None]).argmin(axis=1)
                for axis, ends in zip(axes, (first, last), strict=True)
            )
            return losses.astype(float)[rows, columns]

        ours, theirs = final_loss("final"), final_loss("mean")
        text = f"final loss at the nearest grid points {spread(ours)}, with the sum"
        return conclude(
            [
                (
                    f"rates for {rates}, different",
                    True if True in (lower, higher) else None,
                ),
                (f"{text} {spread(theirs)}", is_lower(ours, theirs)),
            ]
        )

    @override
    def draw(self, results):
        figure, (axis,) = looks.axes(1, size=5.0)
        looks.surface(figure, axis, results["surface"], "final training loss")
        styles = {"mean": "ES", "final": "PES"}
        labels = {"mean": "sum of losses", "final": "final loss"}
        for objective in OBJECTIVES:
            style = looks.look(styles[objective])
            paths = results.path(objective, THETA)
            looks.trajectories(axis, paths, style, labels[objective])
        axis.set(xlabel="log initial learning rate", ylabel="log final learning rate")
        looks.legend(axis, frameon=True)
        return figure
