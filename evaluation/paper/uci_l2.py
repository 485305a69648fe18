"""L2 regularization of linear regression on the UCI Yacht data, appendix."""

import math
from dataclasses import dataclass

import jax
import numpy as np
from typing_extensions import override

from evaluation.paper import looks
from evaluation.paper.experiment import Experiment, Job, conclude, training
from lopt.optimizers.classical import LearnedSGD
from meta_train.analysis.surface import meta_surface
from meta_train.core.inner_training import InnerTraining
from meta_train.core.truncation import Truncation
from meta_train.estimators import PES, TruncatedES
from meta_train.outer.outer_optimizer import OuterAdam
from tasks.supervised.linear import Linear

METHODS = {"PES": PES, "ES": TruncatedES}


@dataclass(frozen=True)
class UciL2(Experiment):
    """Learned L2 coefficient from several starts, against a grid search."""

    name = "uci-l2"
    figure = "appendix D.3, L2 regularization on UCI Yacht"
    claim = "PES reaches the optimum of a grid search from every start, ES does not."
    shows = "Trajectories of the L2 coefficient and of the validation loss."
    differs = (
        "Twelve training examples: with all 247, the grid search finds that no "
        "regularization is best. The horizon (1,000 steps), the inner learning rate, "
        "the starts and the outer optimizer are not in the paper."
    )
    scales = {
        "smoke": {
            **{"num_seeds": 1, "num_outer_steps": 20, "starts": (0.1,)},
            **{"horizon": 20, "num_grid": 5, "num_grid_runs": 2, "dataset": "diabetes"},
        },
        "small": {"num_outer_steps": 100_000},
        "paper": {},
    }
    cost = {"smoke": "5 s", "small": "4 min", "paper": "20 min"}

    num_outer_steps: int = 400_000
    horizon: int = 1_000
    num_pairs: int = 2
    std: float = 0.01
    learning_rate: float = 1e-2
    starts: tuple[float, ...] = (0.01, 0.1, 1.0, 5.0)
    dataset: str = "yacht"
    num_grid: int = 61
    num_grid_runs: int = 20

    def _system(self, start):
        optimizer = LearnedSGD(
            l2=True, initial_l2=start, initial_lr=0.05, fixed=("log_lr",)
        )
        task = Linear(self.dataset, l2=0.0, batch_size=16, num_examples=12)
        # A window of one step sees theta only in the loss after its update.
        return InnerTraining(task, optimizer, "validation-loss", "after")

    @override
    def jobs(self):
        configs = {
            f"{name}, {start:g}": training(
                self._system(start),
                kind(
                    Truncation(1, self.horizon), num_pairs=self.num_pairs, std=self.std
                ),
                OuterAdam(self.learning_rate, clip=None),
                self.num_outer_steps,
                num_evaluation_runs=2,
            )
            for start in self.starts
            for name, kind in METHODS.items()
        }
        return [*self.runs(configs), Job("grid", self._grid)]

    def _grid(self):
        system, key = self._system(0.1), jax.random.key(0)
        axis = np.linspace(math.log(1e-3), math.log(20.0), self.num_grid)
        losses = meta_surface(
            *(system, system.load(), system.init_theta(key), (axis,), self.horizon),
            *(self.num_grid_runs, key),
        )
        return {"axis": axis.tolist(), "losses": losses.tolist()}

    @override
    def check(self, results):
        axis, losses = (
            np.asarray(results["grid"][k], float) for k in ("axis", "losses")
        )
        best = axis[losses.argmin()]
        # Points of the grid within 1 % of the lowest loss, relative to its range.
        near = axis[losses < losses.min() + 0.01 * (np.median(losses) - losses.min())]
        parts = []
        for name in METHODS:
            ends = []
            for start in self.starts:
                path = results.path(f"{name}, {start:g}", ["theta/log_l2"])[..., 0]
                ends.append(path[:, -max(1, path.shape[1] // 4) :].mean(axis=1))
            reached = [
                bool(((near[0] - 0.3 < e) & (e < near[-1] + 0.3)).all()) for e in ends
            ]
            shown = ", ".join(
                f"{s:g} -> {math.exp(e.mean()):.2g}"
                for s, e in zip(self.starts, ends, strict=True)
            )
            holds = all(reached) if name == "PES" else not all(reached)
            text = f"{name}: {shown}; grid {math.exp(best):.2g}, {sum(reached)} of"
            parts.append((f"{text} {len(reached)} starts reach it", holds))
        return conclude(parts)

    @override
    def draw(self, results):
        figure, (left, middle, right) = looks.axes(3)
        for name in METHODS:
            for i, start in enumerate(self.starts):
                method, style = f"{name}, {start:g}", looks.look(name)
                label = name if i == 0 else ""
                steps, paths = results.curve(method, "theta/log_l2")
                looks.curve(left, steps, np.exp(paths), style, label)
                looks.curve(middle, *results.curve(method), style, label)
        axis, losses = (
            np.asarray(results["grid"][k], float) for k in ("axis", "losses")
        )
        left.axhline(
            np.exp(axis[losses.argmin()]), color="k", lw=0.8, label="grid search"
        )
        middle.axhline(losses.min(), color="k", lw=0.8, label="grid search")
        right.plot(np.exp(axis), losses, "k")
        left.set(xlabel="outer update", ylabel="L2 coefficient", yscale="log")
        middle.set(xlabel="outer update", ylabel="meta-objective")
        right.set(xlabel="L2 coefficient", ylabel="meta-objective", xscale="log")
        looks.legend(left)
        return figure
