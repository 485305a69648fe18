"""Rows of table 3, and the entries of the methods that the library has."""

from typing import Any, NamedTuple

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
_BIAS = "tests/meta_train/estimators/test_bias.py"
# Test that proves an entry, for estimators and for tuners. Online and the bias of
# tuners follow from their definition: they restart episodes, and prune or copy them.
PROOFS = {
    "parallel": f"{_TESTS}test_members_are_updated_together",
    "optimization": f"{_TESTS}test_it_tunes",
    "regularization": f"{_TESTS}test_it_tunes",
    "discrete": f"{_TESTS}test_it_tunes_discrete_hyperparameters_or_refuses",
    "online": f"{_TESTS}test_several_episodes_are_used",
    "unbiased": f"{_BIAS}::test_unbiased_estimators_are_unbiased",
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
