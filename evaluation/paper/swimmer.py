"""Linear policy for MuJoCo's Swimmer, figure 8."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from typing_extensions import override

from evaluation.paper import looks
from evaluation.paper.experiment import Experiment, conclude
from evaluation.paper.jobs import training
from evaluation.paper.records import is_lower, spread
from meta_train.core.truncation import Truncation
from meta_train.estimators import PES, AugmentedRandomSearch, FullES, TruncatedES
from meta_train.outer.outer_optimizer import OuterSGD
from tasks.systems.swimmer import Swimmer as SwimmerSystem

KINDS = {"PES": PES, "ES": TruncatedES, "full ES": FullES}
NAMES = (*KINDS, "ARS V1")


@dataclass(frozen=True)
class Swimmer(Experiment):
    """Reward over environment steps, for partial unrolls and whole episodes."""

    name = "swimmer"
    figure = "figure 8"
    claim = (
        "PES on partial unrolls performs like full ES with fewer environment steps; "
        "truncated ES fails."
    )
    shows = "Reward over environment steps, mean of 6 seeds, 50 evaluation episodes."
    differs = (
        "Swimmer-v5 instead of v2. The std is 0.1, and learning rates are chosen per "
        "method by the final reward (the paper searches a grid). ARS V1 has one "
        "direction, step size 0.02 and std 0.01. Truncated ES counts its third unroll. "
        "Small: 3 seeds, 5 evaluation episodes, 400,000 steps."
    )
    scales: ClassVar = {
        "smoke": {
            **{"num_seeds": 1, "horizon": 20, "length": 10, "num_points": 1},
            **{"num_steps": 400, "rates": (0.1,), "num_runs": 1},
        },
        "small": {
            **{"num_seeds": 3, "num_steps": 400_000, "num_runs": 5},
            **{"rates": (0.01, 0.1), "num_points": 4},
        },
        "paper": {},
    }
    minutes: ClassVar = {"smoke": 0.2, "small": 10, "paper": 600}
    modules: ClassVar = {"gymnasium": "control", "mujoco": "control"}

    num_seeds: int = 6
    horizon: int = 1_000
    length: int = 100
    num_pairs: int = 10
    std: float = 0.1
    rates: tuple[float, ...] = (0.01, 0.1, 0.3, 1.0)
    num_steps: int = 4_000_000
    num_runs: int = 50
    num_points: int = 20

    @override
    def jobs(self):
        window = Truncation(self.length, self.horizon)
        fields = {"num_pairs": self.num_pairs, "std": self.std, "normalize": "loss"}
        estimators = {name: kind(window, **fields) for name, kind in KINDS.items()}
        rated = [(n, e, rate) for n, e in estimators.items() for rate in self.rates]
        search = AugmentedRandomSearch(window, num_pairs=1, std=0.01)
        configs = {
            f"{name}/rate-{rate:g}": training(
                SwimmerSystem(),
                estimator,
                OuterSGD(rate),
                max(1, int(self.num_steps / estimator.num_inner_steps)),
                self.num_points,
                self.num_runs,
            )
            for name, estimator, rate in [*rated, ("ARS V1", search, 0.02)]
        }
        return self.runs(configs)

    def _rewards(self, results, name):
        """Environment steps and rewards of an episode, at the best learning rate."""
        best = results.best(m for m in self.methods if m.startswith(f"{name}/"))
        steps = results.curve(best, "inner_steps")[1][0]
        return steps, -self.horizon * results.curve(best)[1], best

    @override
    def check(self, results):
        found = {name: self._rewards(results, name) for name in NAMES}
        ends = {name: rewards[:, -1] for name, (_, rewards, _) in found.items()}
        shown = ", ".join(
            f"{name} {spread(ends[name])} ({found[name][2].partition('/')[2]})"
            for name in NAMES
        )
        areas = {
            name: np.trapezoid(rewards, steps, axis=1) / steps[-1]
            for name, (steps, rewards, _) in found.items()
        }
        early = f"mean {spread(areas['PES'])} and {spread(areas['full ES'])}"
        near = bool(ends["PES"].mean() > 0.9 * ends["full ES"].mean())
        return conclude(
            [
                (f"reward at the end: {shown}; PES like full ES", near),
                (f"PES earlier, {early}", is_lower(-areas["PES"], -areas["full ES"])),
                ("truncated ES below PES", is_lower(ends["ES"], ends["PES"])),
            ]
        )

    @override
    def draw(self, results):
        figure, (axis,) = looks.axes(1, size=5.2)
        for name in NAMES:
            steps, rewards, _ = self._rewards(results, name)
            looks.curve(axis, steps, rewards, looks.look(name), name)
        axis.set(xlabel="environment steps", ylabel="reward of an episode")
        looks.legend(axis)
        return figure
