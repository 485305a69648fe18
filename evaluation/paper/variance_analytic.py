"""Variance of PES+Analytic on an LSTM, appendix F."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from typing_extensions import override

from evaluation.paper.experiment import conclude
from evaluation.paper.records import spread
from evaluation.paper.variance import SEQUENCES, Variance


@dataclass(frozen=True)
class VarianceAnalytic(Variance):
    """Variance of PES+Analytic beside that of PES."""

    name = "variance-analytic"
    figure = "appendix F"
    claim = (
        "The variance of PES+Analytic is one to two orders of magnitude below that of "
        "PES, and grows with the number of unrolls."
    )
    shows = "Variance over the squared gradient, against 1 to 1,000 unrolls."
    minutes: ClassVar = {"smoke": 0.5, "small": 8, "paper": 60}
    kinds: ClassVar = ("PES", "PES+Analytic")

    @override
    def check(self, results):
        parts = []
        for name in SEQUENCES:
            # With one unroll, PES+Analytic is exact.
            several = np.asarray(self.windows) > 1
            pes = self._table(results, name)[:, several]
            analytic = self._table(results, name, "PES+Analytic")[:, several]
            ratio = (pes / analytic).mean(axis=0)
            text = f"{name}: PES / PES+Analytic from {ratio.min():.3g} to"
            parts.append((f"{text} {ratio.max():.3g}", bool((ratio > 10).all())))
            rises = bool((analytic[:, -1] > analytic[:, 0]).all())
            ends = f"{spread(analytic[:, 0])} to {spread(analytic[:, -1])}"
            parts.append((f"its variance goes from {ends}", rises))
        return conclude(parts)
