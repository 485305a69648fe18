"""Properties of hyperparameter optimization methods, table 3."""

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from typing_extensions import override

from evaluation.paper import looks
from evaluation.paper.experiment import Experiment, Job, conclude
from evaluation.tuners.tuners import TUNERS
from meta_train.core.truncation import Truncation
from meta_train.estimators import ESTIMATORS

COLUMNS = (
    "parallel",
    "optimization",
    "regularization",
    "discrete",
    "online",
    "unbiased",
)
_TESTS = "tests/evaluation/paper/test_methods.py::"
_BIAS = "tests/meta_train/estimators/test_bias.py::test_what_says_it_is_"
# Test that proves an entry, for estimators and for tuners. Online and the bias of
# tuners follow from their definition: they restart episodes, and prune or copy them.
PROOFS = {
    "parallel": f"{_TESTS}test_members_are_updated_together",
    "optimization": f"{_TESTS}test_it_tunes",
    "regularization": f"{_TESTS}test_it_tunes",
    "discrete": f"{_TESTS}test_it_tunes_discrete_hyperparameters_or_refuses",
    "online": f"{_TESTS}test_it_uses_several_episodes",
    "unbiased": f"{_BIAS}unbiased_is",
}


class Method(NamedTuple):
    """Row of the table.

    Attributes:
        name: Name in the paper.
        paper: Entries in the paper, ``y`` or ``n`` for each of `COLUMNS`.
        part: Estimator or tuner of the library; empty if it lacks the method.
    """

    name: str
    paper: str
    part: str = ""


ROWS = (
    Method("Grid / random search", "yyyyny", "random"),
    Method("Bayesian optimization", "yyyyny", "gp"),
    Method("SHAC", "yyyynn"),
    Method("Freeze-Thaw BO", "yyyyny"),
    Method("Full ES", "yyyyny", "FullES"),
    Method("PBT", "yyyyyn", "pbt"),
    Method("Successive halving", "yyyynn", "halving"),
    Method("Hyperband", "yyyynn", "hyperband"),
    Method("TBPTT", "nyynnn", "TruncatedBackprop"),
    Method("Full BPTT", "nyynny", "FullBackprop"),
    Method("STN", "nnyyyn"),
    Method("IFT", "nnynyy"),
    Method("HD", "nynnyn"),
    Method("MARTHE", "nyynyn"),
    Method("RTHO", "nyynyy", "RTRL"),
    Method("PES", "yyyyny", "PES"),
    Method("PES + Analytic", "yyynny", "PESAnalytic"),
)


def entries(part: str) -> dict[str, bool]:
    """Entries of a method of the library, from the properties of its class."""
    always = {"parallel": True, "optimization": True, "regularization": True}
    if part in TUNERS:
        tuner: Any = TUNERS[part]
        unbiased = getattr(tuner, "pruner", "copies") == "none"
        online = part == "pbt"
        return {**always, "discrete": True, "online": online, "unbiased": unbiased}
    estimator = ESTIMATORS[part](Truncation(length=1, horizon=10))
    return {
        **always,
        "discrete": estimator.derivatives == "none",
        "online": part == "RTRL",
        "unbiased": estimator.is_unbiased,
    }


@dataclass(frozen=True)
class Methods(Experiment):
    """The entries of the table for every method that the library has."""

    name = "methods"
    figure = "table 3"
    claim = "The methods of the library have the properties in the table."
    shows = "Seventeen methods; parallel, tunes what, online, unbiased."
    differs = (
        "Gradient-based methods are parallel here, as they have populations. The "
        "library lacks SHAC, Freeze-Thaw BO, STN, IFT, HD and MARTHE. Each entry is "
        "proved by the test that PROOFS names, or follows from the definition."
    )
    scales: ClassVar = {"smoke": {}, "small": {}, "paper": {}}
    minutes: ClassVar = {"smoke": 0.1, "small": 0.1, "paper": 0.1}

    @override
    def jobs(self):
        return [
            Job(f"rows/{r.part}", lambda r=r: entries(r.part)) for r in ROWS if r.part
        ]

    @override
    def check(self, results):
        parts, lacking = [], []
        for name, paper, part in ROWS:
            if not part:
                lacking.append(name)
                continue
            known = dict(zip(COLUMNS, (c == "y" for c in paper), strict=True))
            ours = results[f"rows/{part}"]
            other = [c for c in COLUMNS if ours[c] != known[c]]
            text = (
                f"{name} differs in {', '.join(other)}" if other else f"{name} as there"
            )
            parts.append((text, not [c for c in other if c != "parallel"]))
        verdict = conclude(parts)
        return verdict._replace(
            evidence=f"{verdict.evidence} Lacking: {', '.join(lacking)}."
        )

    @override
    def draw(self, results):
        figure, (axis,) = looks.axes(1, size=7.0)
        axis.set_axis_off()
        marks = {True: "yes", False: "no"}
        cells = [
            [marks[results[f"rows/{r.part}"][c]] if r.part else "-" for c in COLUMNS]
            for r in ROWS
        ]
        table = axis.table(
            cells, rowLabels=[r.name for r in ROWS], colLabels=COLUMNS, loc="center"
        )
        table.auto_set_font_size(False)
        table.set_fontsize(8)
        for (row, column), cell in table.get_celld().items():
            if column >= 0 and cell.get_text().get_text() == "yes":
                cell.set_facecolor("#d7ead7")
            cell.set_edgecolor("0.8")
            cell.set_height(0.052 if row else 0.06)
        return figure
