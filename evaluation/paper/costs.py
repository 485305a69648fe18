"""Compute and memory of estimators from compiled programs, table 1."""

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np
from typing_extensions import override

from evaluation.paper import looks
from evaluation.paper.experiment import Experiment, Job, conclude
from meta_train.analysis.scaling import exponents


class Row(NamedTuple):
    """Row of the table: formulas of the paper and the exponents that follow.

    Attributes:
        compute: Formula of the compute.
        memory: Formula of the memory.
        powers: Exponents of compute and memory in K, T and N.
    """

    compute: str
    memory: str
    powers: dict[str, tuple[float, float]]


def _row(compute, memory, k, t, n=(1, 1)):
    return Row(compute, memory, {"k": k, "t": t, "n": n})


ROWS = {
    # Backpropagation through whole episodes stores every sqrt(T)-th state.
    "FullBackprop": _row("T(F+B)", "TS", (0, 0), (1, 0.5)),
    "TruncatedBackprop": _row("K(F+B)", "KS", (1, 1), (0, 0)),
    # The expected number of windows is fixed, the compiled program spans an episode.
    "ARTBP": _row("K(F+B)", "KS", (0, 0), (1, 1)),
    "RTRL": _row("PS^2 + S(F+B)", "SP + S^2", (1, 0), (0, 0)),
    "UORO": _row("F + B + S^2 + P", "S + P", (1, 0), (0, 0)),
    "Reparameterization": _row("NT(F+B)", "NTS", (0, 0), (1, 0.5)),
    "FullES": _row("NTF", "NS", (0, 0), (1, 0)),
    "TruncatedES": _row("NKF", "NS", (1, 0), (0, 0)),
    "PES": _row("NKF", "N(S+P)", (1, 0), (0, 0)),
    "PESAnalytic": _row("NKF + K(F+B)", "N(S+P) + (K+1)S", (1, 1), (0, 0)),
}
RANGES = {"k": (16, 64), "t": (256, 4_096), "n": (8, 32)}


@dataclass(frozen=True)
class Costs(Experiment):
    """Fitted exponents of FLOPs and bytes in K, T and N for ten methods."""

    name = "costs"
    figure = "table 1, compute and memory"
    claim = "Compute and memory grow with K, T and N as in the table."
    shows = "Formulas for ten methods; unbiasedness is measured by `methods`."
    differs = (
        "FullBackprop and Reparameterization recompute states, so that their memory "
        "grows as the root of T. ARTBP may span an episode. RTRL propagates columns of "
        "the Jacobian forward, without the S x S matrix. Costs are per update of K "
        "steps, with a population."
    )
    scales: ClassVar = {
        "smoke": {"names": ("PES",), "axes": ("n",)},
        "small": {},
        "paper": {},
    }
    minutes: ClassVar = {"smoke": 0.1, "small": 4, "paper": 4}

    names: tuple[str, ...] = tuple(ROWS)
    axes: tuple[str, ...] = ("k", "t", "n")

    @override
    def jobs(self):
        def measure(name):
            # The state is large, except where a Jacobian is carried.
            sizes = {"p": 32, "s": 8_192} if name != "RTRL" else {"p": 16, "s": 512}
            return lambda: {
                axis: exponents(name, axis, *RANGES[axis], **sizes).tolist()
                for axis in self.axes
            }

        return [Job(name, measure(name)) for name in self.names]

    @override
    def check(self, results):
        parts = []
        for name in self.names:
            found = results[name]
            gaps = [np.subtract(found[a], ROWS[name].powers[a]) for a in self.axes]
            powers = ", ".join(
                f"{axis.upper()} {found[axis][0]:.2f} / {found[axis][1]:.2f}"
                for axis in self.axes
            )
            text = f"{name} ({ROWS[name].compute}; {ROWS[name].memory}): {powers}"
            parts.append((text, bool(np.abs(gaps).max() < 0.2)))
        return conclude(parts)

    @override
    def draw(self, results):
        figure, panels = looks.axes(2, columns=2, size=4.8)
        colors = {"k": "C0", "t": "C1", "n": "C2"}
        rows = np.arange(len(self.names))
        for j, (axis, title) in enumerate(zip(panels, ("FLOPs", "bytes"), strict=True)):
            for i, name in enumerate(self.axes):
                values = [results[n][name][j] for n in self.names]
                expected = [ROWS[n].powers[name][j] for n in self.names]
                where = rows + 0.25 * (i - 1)
                label = f"in {name.upper()}"
                axis.barh(where, values, 0.25, color=colors[name], label=label)
                marks = "expected" if i == 0 else None
                axis.plot(expected, where, "k|", ms=8, label=marks)
            axis.set(yticks=rows, yticklabels=self.names if j == 0 else [])
            axis.set(title=f"exponent of {title}", xlim=(-0.1, 1.4))
            axis.invert_yaxis()
        looks.legend(panels[1])
        return figure
