"""Ablation of window length and population size on the toy problem, appendix."""

import dataclasses
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from typing_extensions import override

from evaluation.paper import looks
from evaluation.paper.experiment import Experiment, conclude
from evaluation.paper.jobs import training
from evaluation.paper.records import first_below, spread
from evaluation.paper.toy_2d import SYSTEM
from meta_train.core.truncation import Truncation
from meta_train.estimators import PES
from meta_train.outer.outer_optimizer import OuterAdam


@dataclass(frozen=True)
class Toy2DAblation(Experiment):
    """PES with several window lengths, and with several population sizes."""

    name = "toy-2d-ablation"
    figure = "appendix G, sensitivity (a) and (b)"
    claim = "Shorter truncations converge in fewer inner steps; more particles help."
    shows = (
        "With T = 10,000: from K = 1,000 to K = 1 the loss falls earlier (N = 10,000 "
        "particles); with K = 1, more particles reach a lower loss."
    )
    differs = (
        "The grid of window lengths and particles and the number of inner steps are "
        "ours, as the paper does not list them. The scale small has 40,000 inner steps."
    )
    scales: ClassVar = {
        "smoke": {
            **{"num_seeds": 1, "horizon": 100, "num_inner_steps": 200},
            **{"lengths": (10, 50), "populations": (4, 8), "num_points": 2},
        },
        "small": {"num_inner_steps": 40_000, "populations": (100, 1_000, 10_000)},
        "paper": {},
    }
    minutes: ClassVar = {"smoke": 0.2, "small": 5, "paper": 60}

    num_inner_steps: int = 400_000
    horizon: int = 10_000
    lengths: tuple[int, ...] = (1, 10, 100)
    populations: tuple[int, ...] = (10, 100, 1_000, 10_000)
    std: float = 0.1
    learning_rate: float = 3e-2
    num_points: int = 50

    def _config(self, length, num_particles):
        estimator = PES(
            Truncation(length, self.horizon), num_pairs=num_particles // 2, std=self.std
        )
        return training(
            dataclasses.replace(SYSTEM, loss_at="after"),
            estimator,
            OuterAdam(self.learning_rate, clip=None),
            self.num_inner_steps // length,
            num_points=self.num_points,
        )

    @override
    def jobs(self):
        most, shortest = self.populations[-1], self.lengths[0]
        lengths = {f"K = {k}": self._config(k, most) for k in self.lengths}
        # The largest population at the shortest window is in the first group already.
        sizes = {f"N = {n}": self._config(shortest, n) for n in self.populations[:-1]}
        return [*self.runs(lengths), *self.runs(sizes)]

    @override
    def check(self, results):
        names = self.methods[: len(self.lengths)]
        start = results.curve(names[0])[1][0, 0]
        level = start - 0.8 * (start - min(results.final(n).mean() for n in names))
        arrival = []
        for length, name in zip(self.lengths, names, strict=True):
            steps, losses = results.curve(name)
            arrival.append(first_below(steps * length, losses, level).mean())
        shown = ", ".join(f"{n}: {a:.0f}" for n, a in zip(names, arrival, strict=True))
        # Mean over the run: how low, and how early.
        by_size = [*self.methods[len(self.lengths) :], names[0]]
        areas = [results.tail(name, share=1.0) for name in by_size]
        sizes = ", ".join(
            f"N = {n}: {spread(a)}"
            for n, a in zip(self.populations, areas, strict=True)
        )
        is_ordered = arrival == sorted(arrival) and bool(arrival[0] < arrival[-1])
        falls = bool(np.all(np.diff([a.mean() for a in areas]) < 0))
        by_length = (f"inner steps to 80 % of the best reduction: {shown}", is_ordered)
        return conclude([by_length, (f"mean meta-loss over the run: {sizes}", falls)])

    @override
    def draw(self, results):
        figure, panels = looks.axes(2, size=4.2)
        num, shortest, most = len(self.lengths), self.lengths[0], self.populations[-1]
        by_length = [
            (n, k, n) for n, k in zip(self.methods, self.lengths, strict=False)
        ]
        by_size = [(n, shortest, n) for n in self.methods[num:]]
        by_size.append((self.methods[0], shortest, f"N = {most}"))
        titles = (f"N = {most}", f"K = {shortest}")
        for axis, group, title in zip(
            panels, (by_length, by_size), titles, strict=True
        ):
            for i, (name, length, label) in enumerate(group):
                steps, losses = results.curve(name)
                style = looks.shade(1 - i / len(group), i)
                looks.curve(axis, steps * length, losses, style, label)
            axis.set(xlabel="inner steps of one particle", title=title)
            axis.set_ylabel("meta-objective")
            looks.legend(axis)
        return figure
