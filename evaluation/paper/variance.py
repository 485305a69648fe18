"""Empirical variance of PES on an LSTM, figure 2 and appendix E."""

from dataclasses import dataclass
from typing import ClassVar

import jax
import numpy as np
from typing_extensions import override

from evaluation.paper import looks
from evaluation.paper.experiment import Experiment, Job, conclude
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
        "Treebank (50). The reference is the exact gradient instead of full ES. The "
        "scale small has the 1,000 characters of the appendix."
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
        return [
            Job(f"{sequence}/seed-{seed}", self._measure(sequence, seed))
            for sequence in SEQUENCES
            for seed in range(self.num_seeds)
        ]

    def _measure(self, sequence, seed):
        def measure():
            key = jax.random.key(seed)
            data = CharacterLSTM(sequence=sequence).load()
            theta = SYSTEM.init_theta(key)

            def estimates(kind, num_windows, num, repeats, **fields):
                length = self.horizon // num_windows
                window = Truncation(length, self.horizon, staggered=False)
                estimator = kind(window, num, **fields)
                return episode_estimates(estimator, SYSTEM, data, theta, repeats, key)

            exact = estimates(FullBackprop, 1, 1, 1)[0]

            def relative(kind, num_windows):
                num, fields = self.num_pairs, {"std": self.std}
                found = estimates(kind, num_windows, num, self.num_repeats, **fields)
                return member_variance(found, num) / float(exact @ exact)

            return {
                name: [relative(KINDS[name], n) for n in self.windows]
                for name in self.kinds
            }

        return measure

    def _table(self, results, sequence, kind="PES"):
        return np.asarray([found[kind] for found in results.of(sequence)])

    @override
    def check(self, results):
        found = {name: self._table(results, name) for name in SEQUENCES}
        first, low, last = (
            {name: pick(values) for name, values in found.items()}
            for pick in (lambda v: v[:, 0], lambda v: v.min(axis=1), lambda v: v[:, -1])
        )
        between = bool(
            last["repeated"].max() < last["text"].min()
            and last["text"].max() < last["random"].min()
        )
        parts = {
            "text decreases first": (low["text"] < 0.98 * first["text"]).all(),
            "text grows then": (last["text"] > 2 * low["text"]).all(),
            "random grows": (last["random"] > 2 * first["random"]).all(),
            "repeated decreases": (low["repeated"] < 0.98 * first["repeated"]).all(),
            "text ends between them": between,
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
            axis.set(xlabel="number of unrolls", ylabel="variance / |gradient|²")
        looks.legend(panels[0])
        return figure
