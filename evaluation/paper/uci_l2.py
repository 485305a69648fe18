"""L2 regularization of linear regression on the UCI Yacht data, appendix."""

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from typing_extensions import override

from evaluation.paper import looks
from evaluation.paper.experiment import Experiment, conclude
from evaluation.paper.jobs import surface, training
from lopt.optimizers.classical import LearnedSGD
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
    scales: ClassVar = {
        "smoke": {
            **{"num_seeds": 1, "num_outer_steps": 20, "starts": (0.1,)},
            **{"horizon": 20, "num_grid": 5, "dataset": "diabetes"},
        },
        "small": {"num_outer_steps": 100_000},
        "paper": {},
    }
    minutes: ClassVar = {"smoke": 0.2, "small": 2, "paper": 8}

    num_outer_steps: int = 400_000
    horizon: int = 1_000
    num_pairs: int = 2
    std: float = 0.01
    learning_rate: float = 1e-2
    starts: tuple[float, ...] = (0.01, 0.1, 1.0, 5.0)
    dataset: str = "yacht"
    num_grid: int = 61

    def _system(self, start):
        fixed = {"initial_lr": 0.05, "fixed": ("log_lr",)}
        optimizer = LearnedSGD(l2=True, initial_l2=start, **fixed)
        task = Linear(self.dataset, l2=0.0, batch_size=16, num_examples=12)
        # A window of one step sees theta only in the loss after its update.
        return InnerTraining(task, optimizer, "validation-loss", "after")

    @override
    def jobs(self):
        window = Truncation(1, self.horizon)
        configs = {
            f"{name}, {start:g}": training(
                self._system(start),
                kind(window, num_pairs=self.num_pairs, std=self.std),
                OuterAdam(self.learning_rate, clip=None),
                self.num_outer_steps,
                num_evaluation_runs=2,
            )
            for start in self.starts
            for name, kind in METHODS.items()
        }
        axis = np.linspace(math.log(1e-3), math.log(20.0), self.num_grid)
        grid = surface("grid", self._system(0.1), (axis,), self.horizon, 20)
        return [*self.runs(configs), grid]

    @override
    def check(self, results):
        (axis,), losses = map(np.asarray, results["grid"].values())
        best = axis[losses.argmin()]
        parts = []
        for name in METHODS:
            methods = [f"{name}, {start:g}" for start in self.starts]
            ends = [results.tail(m, "theta/log_l2", 0.25) for m in methods]
            # Within a factor of two of the best coefficient, for all seeds.
            reached = [bool((abs(e - best) < math.log(2)).all()) for e in ends]
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
        (axis,), losses = map(np.asarray, results["grid"].values())
        left.axhline(np.exp(axis[losses.argmin()]), color="k", lw=0.8, label="grid")
        middle.axhline(losses.min(), color="k", lw=0.8)
        right.plot(np.exp(axis), losses, "k")
        left.set(xlabel="outer update", ylabel="L2 coefficient", yscale="log")
        middle.set(xlabel="outer update", ylabel="meta-objective")
        right.set(xlabel="L2 coefficient", ylabel="meta-objective", xscale="log")
        looks.legend(left)
        return figure
