"""Closed forms of the variance of PES against simulation, table 2."""

import functools
from dataclasses import dataclass
from typing import ClassVar, get_args

import jax
import numpy as np
from typing_extensions import override

from evaluation.paper import looks
from evaluation.paper.experiment import Experiment, conclude
from meta_train.analysis.theory import (
    Structure,
    gradient_matrix,
    relative_variance,
    simulate,
)

STRUCTURES = get_args(Structure)


def of_the_paper(structure: str, t: int, p: int) -> float | None:
    """Evaluate the formula of the paper; `None` where it gives an order only."""
    if structure == "diagonal, identical":
        return p / 2 + p / (2 * t) + 1
    if structure == "diagonal, independent":
        return p * t / 2 + p / 2 + t
    if structure == "triangular, identical":
        power = 5 / 12 * t**4 + 2 / 3 * p * t**3 + p * t**2 / 2 - p * t / 6
        return (power + t**3 / 2 + 7 / 12 * t**2 + t / 2) * (2 / (t * (t + 1))) ** 2
    return None


@dataclass(frozen=True)
class VarianceTheory(Experiment):
    """Simulated variance, our closed forms and those of the paper."""

    name = "variance-theory"
    figure = "table 2"
    claim = "The closed forms of the variance equal simulations."
    shows = "Formulas for identical or independent gradients, in two structures."
    differs = (
        "The formulas of the paper differ from the simulation: both are shown. Ours "
        "follow from Wick's theorem; subdividing helps by at most one half, not by 1/T."
    )
    scales: ClassVar = {
        "smoke": {"windows": (1, 4), "num_samples": 2_000, "num_seeds": 1},
        "small": {},
        "paper": {"windows": (1, 2, 4, 8, 16, 32, 64), "num_samples": 400_000},
    }
    minutes: ClassVar = {"smoke": 0.1, "small": 2, "paper": 15}

    windows: tuple[int, ...] = (1, 2, 4, 8, 16)
    size: int = 10
    num_samples: int = 50_000

    @override
    def jobs(self):
        jobs = []
        for name in STRUCTURES:
            work = functools.partial(self._simulate, name)
            jobs += self.repeats(name.replace(", ", "-"), work)
        return jobs

    def _simulate(self, structure, seed):
        num_draws = 100 if structure.endswith("independent") else 1

        def draw(num_windows, key):
            key_grads, key_noise = jax.random.split(key)
            grads = gradient_matrix(structure, num_windows, self.size, key_grads)
            samples = simulate(grads, self.num_samples // num_draws, key_noise)
            squared = (grads.sum(axis=(0, 1)) ** 2).sum()
            return samples.var(axis=0, ddof=1).sum(), squared

        keys, found = jax.random.split(jax.random.key(seed), num_draws), []
        for num_windows in self.windows:
            each = jax.jit(functools.partial(draw, num_windows))
            variance, squared = np.mean([each(key) for key in keys], axis=0)
            found.append(float(variance / squared))
        return found

    def _found(self, results, name):
        return np.asarray(results.of(name.replace(", ", "-")))

    def _error(self, results, name, formula):
        values = [formula(name, t, self.size) or np.nan for t in self.windows]
        return np.abs(self._found(results, name).mean(axis=0) / values - 1).max()

    @override
    def check(self, results):
        parts = []
        for name in STRUCTURES:
            ours = self._error(results, name, relative_variance)
            theirs = self._error(results, name, of_the_paper)
            text = f"{name}: within {ours:.1%} of ours"
            text += "" if np.isnan(theirs) else f", {theirs:.0%} of the paper's"
            parts.append((text, bool(ours < 0.1)))
        return conclude(parts)

    @override
    def draw(self, results):
        figure, panels = looks.axes(4, columns=4, size=3.0)
        formulas = {"ours": (relative_variance, "k"), "paper": (of_the_paper, "0.6")}
        for axis, name in zip(panels, STRUCTURES, strict=True):
            found, style = self._found(results, name), looks.look("PES")
            looks.curve(axis, self.windows, found, style, "simulated PES")
            for label, (formula, color) in formulas.items():
                values = [formula(name, t, self.size) for t in self.windows]
                if None not in values:
                    axis.plot(self.windows, values, "--", color=color, label=label)
            axis.set(xscale="log", title=name, xlabel="unrolls T", ylim=(0, None))
            axis.title.set_fontsize(9)
        panels[0].set_ylabel("variance / |gradient|²")
        looks.legend(panels[1])
        return figure
