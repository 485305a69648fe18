"""Empirical variance of PES on an LSTM, figure 2 and appendix E."""

import functools
from dataclasses import dataclass
from typing import ClassVar

import jax
import numpy as np
from typing_extensions import override

from evaluation.paper import looks
from evaluation.paper.experiment import Experiment, conclude
from evaluation.paper.records import spread
from meta_train.analysis.variance import episode_estimates, member_variance
from meta_train.core.truncation import Truncation
from meta_train.estimators import PES, FullBackprop, PESAnalytic
from tasks.systems.character_lstm import CharacterLSTM

SYSTEM = CharacterLSTM(random_start=False)
SEQUENCES = ("random", "repeated", "text")
KINDS = {"PES": PES, "PES+Analytic": PESAnalytic}


@dataclass(frozen=True)
class Variance(Experiment):
    """Variance of PES against the number of unrolls, on three sequences."""

    name = "variance"
    figure = "figure 2, and appendix E"
    claim = (
        "As a sequence is split into more unrolls, the variance first decreases and "
        "then grows about linearly; real text lies between random and repeated tokens."
    )
    shows = "Variance over the squared gradient, against 1 to 10,000 unrolls."
    differs = (
        "The text is scikit-learn's dataset descriptions (27 tokens) instead of Penn "
        "Treebank (50); the reference is the exact gradient. Small: 1,000 characters."
    )
    scales: ClassVar = {
        "smoke": {"num_seeds": 1, "horizon": 20, "windows": (4,), "num_repeats": 3},
        "small": {"horizon": 1_000, "windows": (1, 2, 5, 10, 40, 200, 1_000)},
        "paper": {},
    }
    minutes: ClassVar = {"smoke": 0.3, "small": 4, "paper": 30}
    kinds: ClassVar = ("PES",)

    horizon: int = 10_000
    windows: tuple[int, ...] = (1, 2, 5, 10, 50, 200, 1_000, 10_000)
    num_pairs: int = 50
    std: float = 0.01
    num_repeats: int = 8

    @override
    def jobs(self):
        jobs = []
        for sequence in SEQUENCES:
            jobs += self.repeats(sequence, functools.partial(self._measure, sequence))
        return jobs

    def _measure(self, sequence, seed):
        data, key = CharacterLSTM(sequence=sequence).load(), jax.random.key(seed)
        theta = SYSTEM.init_theta(key)

        def estimates(kind, num_windows, num, repeats, **fields):
            sizes = (self.horizon // num_windows, self.horizon)
            estimator = kind(Truncation(*sizes, staggered=False), num, **fields)
            return episode_estimates(estimator, SYSTEM, data, theta, repeats, key)

        exact = estimates(FullBackprop, 1, 1, 1)[0]

        def relative(kind, num_windows):
            num, fields = self.num_pairs, {"std": self.std}
            found = estimates(kind, num_windows, num, self.num_repeats, **fields)
            return member_variance(found, num) / float(exact @ exact)

        return {k: [relative(KINDS[k], n) for n in self.windows] for k in self.kinds}

    def _table(self, results, sequence, kind="PES"):
        return np.asarray([found[kind] for found in results.of(sequence)])

    @override
    def check(self, results):
        found = {name: self._table(results, name) for name in SEQUENCES}
        first = {name: values[:, 0] for name, values in found.items()}
        low = {name: values.min(axis=1) for name, values in found.items()}
        last = {name: values[:, -1] for name, values in found.items()}
        parts = {
            "text decreases first": (low["text"] < 0.98 * first["text"]).all(),
            "text grows then": (last["text"] > 2 * low["text"]).all(),
            "random grows": (last["random"] > 2 * first["random"]).all(),
            "repeated decreases": (low["repeated"] < 0.98 * first["repeated"]).all(),
            "text above repeated": (last["text"] > last["repeated"]).all(),
            "text below random": (last["text"] < last["random"]).all(),
        }
        shown = "; ".join(
            f"{n}: {spread(first[n])} for one unroll, lowest {spread(low[n])}, "
            f"{spread(last[n])} for {self.windows[-1]}"
            for n in SEQUENCES
        )
        verdict = conclude([(text, bool(holds)) for text, holds in parts.items()])
        return verdict._replace(evidence=f"{verdict.evidence} {shown}.")

    @override
    def draw(self, results):
        figure, panels = looks.axes(3, size=3.4)
        for axis, sequence in zip(panels, SEQUENCES, strict=True):
            for kind in self.kinds:
                values = self._table(results, sequence, kind)
                looks.curve(axis, self.windows, values, looks.look(kind), kind)
            axis.set(xscale="log", yscale="log", title=f"{sequence} sequence")
            axis.set(xlabel="unrolls", ylabel="variance / |gradient|²")
        looks.legend(panels[0])
        return figure
