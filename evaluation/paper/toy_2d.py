"""Toy 2D regression, figure 5: meta-objective surface, trajectories and curves."""

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from typing_extensions import override

from evaluation.paper import looks
from evaluation.paper.experiment import Experiment, conclude
from evaluation.paper.jobs import surface, training, with_estimators
from evaluation.paper.records import is_lower, spread
from lopt.optimizers.scheduled_sgd import ScheduledSGD
from meta_train.core.inner_training import InnerTraining
from meta_train.core.truncation import Truncation
from meta_train.estimators import PES, RTRL, UORO, TruncatedBackprop, TruncatedES
from meta_train.outer.outer_optimizer import OuterAdam
from tasks.synthetic.toy_regression import ToyRegression

SYSTEM = InnerTraining(ToyRegression(), ScheduledSGD(initial_lr=math.exp(-4.5)))
NAMES = ("theta/0", "theta/1")


@dataclass(frozen=True)
class Toy2D(Experiment):
    """Trajectories of five estimators from (-4.5, -4.5)."""

    name = "toy-2d"
    figure = "figure 5"
    claim = (
        "From (-4.5, -4.5), TBPTT, UORO and RTRL get stuck, ES is biased, and PES "
        "reaches the good basin."
    )
    shows = (
        "Trajectories on the meta-objective surface, and the meta-objective over inner "
        "steps: PES alone reaches the dark region."
    )
    differs = "TBPTT, UORO and RTRL average ten staggered episodes. No clipping."
    scales: ClassVar = {
        "smoke": {"num_seeds": 1, "num_outer_steps": 20, "num_pairs": 4, "num_grid": 4},
        "small": {"num_outer_steps": 5_000, "num_grid": 61},
        "paper": {},
    }
    minutes: ClassVar = {"smoke": 0.3, "small": 1, "paper": 5}

    num_outer_steps: int = 20_000
    horizon: int = 100
    length: int = 10
    num_pairs: int = 50
    std: float = 1.0
    learning_rate: float = 1e-2
    num_grid: int = 161

    @override
    def jobs(self):
        window = Truncation(self.length, self.horizon)
        estimators = {
            "PES": PES(window, num_pairs=self.num_pairs, std=self.std),
            "ES": TruncatedES(window, num_pairs=self.num_pairs, std=self.std),
            "TBPTT": TruncatedBackprop(window, num_episodes=10),
            "UORO": UORO(window, num_episodes=10),
            "RTRL": RTRL(window, num_episodes=10),
        }
        config = training(
            SYSTEM,
            estimators["PES"],
            OuterAdam(self.learning_rate, clip=None),
            self.num_outer_steps,
            num_points=200,
        )
        methods = with_estimators(config, estimators)
        axis = np.linspace(-8.0, 6.0, self.num_grid)
        found = surface("surface", SYSTEM, (axis, axis), self.horizon)
        return [*self.runs(methods), found]

    @override
    def check(self, results):
        best = np.nanmin(np.asarray(results["surface"]["losses"], float))
        start = results.curve("PES")[1][0, 0]
        # The loss at a theta is rough: average over the last tenth of the run.
        ends = {name: results.tail(name) for name in self.methods}
        share = {name: (start - end) / (start - best) for name, end in ends.items()}
        worst = share["PES"].min()
        outcome = True if worst > 0.8 else None if share["PES"].max() > 0.8 else False
        about = f"PES closes {spread(share['PES'])} of the gap to the best grid point"
        parts = [(about, outcome)]
        for name in ("ES", "TBPTT", "UORO", "RTRL"):
            text = f"{name} {spread(share[name])}, less than PES"
            parts.append((text, is_lower(ends["PES"], ends[name])))
        return conclude(parts)

    @override
    def draw(self, results):
        figure, (left, right) = looks.axes(2, size=4.6)
        looks.surface(figure, left, results["surface"], "mean loss of an episode")
        for name in self.methods:
            looks.trajectories(left, results.path(name, NAMES), looks.look(name), name)
        looks.curves(right, results, self.methods, self.length)
        left.set(xlabel="log initial learning rate", ylabel="log final learning rate")
        left.set(xlim=(-8, 6), ylim=(-8, 6))
        right.set(xlabel="inner steps of one episode", ylabel="meta-objective")
        right.set_yscale("log")
        looks.legend(right, loc="center right", bbox_to_anchor=(1, 0.3))
        return figure
