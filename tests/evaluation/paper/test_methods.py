"""Proofs of the entries of table 3, for every method of the library."""

import ast
from pathlib import Path

import jax
import numpy as np
import pytest

from evaluation.paper.method_table import COLUMNS, PROOFS, ROWS, entries
from evaluation.tuners.episodes import OuterProblem
from evaluation.tuners.tuners import TUNERS
from lopt.errors import UserError
from lopt.optimizers.classical import LearnedSGD
from meta_train.core.inner_training import InnerTraining
from meta_train.core.truncation import Truncation
from meta_train.estimators import ESTIMATORS
from meta_train.outer.compatibility import Compatibility
from tasks.families.masked_mlp import MaskedMLP
from tests.evaluation.tuners.test_tuners import NO_TORCH
from tests.meta_train.outer.test_compatibility import Accuracy

ROOT = Path(__file__).parent.parent.parent.parent
PARTS = [row.part for row in ROWS if row.part]
SEARCHED = [
    pytest.param(p, marks=NO_TORCH if p == "gp" else []) for p in PARTS if p in TUNERS
]
ESTIMATED = [part for part in PARTS if part in ESTIMATORS]
L2 = InnerTraining(MaskedMLP(width=4, batch_size=8), LearnedSGD(l2=True))
ERRORS = InnerTraining(
    MaskedMLP(width=4, batch_size=8), LearnedSGD(), "validation-error"
)


def update(part, system, key):
    estimator = ESTIMATORS[part](Truncation(4, 8)).resized(16)
    data, theta = system.load(), system.init_theta(key)
    state = estimator.init(system, data, theta, key)
    return estimator.update(system, data, theta, state, key)[0].grad


def search(part, system):
    problem = OuterProblem(system, horizon=20)
    (*_, found) = TUNERS[part].search(problem, system.load(), 600, seed=0)
    return found.theta


@pytest.mark.parametrize("part", ESTIMATED)
def test_it_tunes(part, key):
    grad = update(part, L2, key).optimizer
    assert float(grad["log_lr"]) != 0.0  # an optimization hyperparameter
    assert float(grad["log_l2"]) != 0.0  # a regularization hyperparameter


@pytest.mark.parametrize("part", SEARCHED)
def test_it_tunes_by_search(part):
    start, theta = L2.init_theta(jax.random.key(0)), search(part, L2)
    assert theta.optimizer["log_lr"] != start.optimizer["log_lr"]
    assert theta.optimizer["log_l2"] != start.optimizer["log_l2"]
    assert (theta.task != start.task).all()  # numbers of hidden units


@pytest.mark.parametrize("part", ESTIMATED)
def test_it_tunes_discrete_hyperparameters_or_refuses(part, key):
    if entries(part)["discrete"]:
        grad = update(part, ERRORS, key)  # classification error: piecewise constant
        assert np.isfinite(grad.task).all()
        return
    system = Accuracy()
    theta = system.init_theta(key)
    with pytest.raises(UserError, match="differentiates the unroll"):
        Compatibility(system, system.load(), theta).check(
            ESTIMATORS[part](Truncation(4, 8))
        )


@pytest.mark.parametrize("part", ESTIMATED)
def test_members_are_updated_together(part, key):
    estimator = ESTIMATORS[part](Truncation(4, 8)).resized(16)
    theta = L2.init_theta(key)
    state = jax.eval_shape(lambda: estimator.init(L2, L2.load(), theta, key))
    assert all(leaf.shape[0] == 16 for leaf in jax.tree.leaves(state))


@pytest.mark.parametrize("part", SEARCHED)
def test_several_episodes_are_used(part):
    problem = OuterProblem(L2, horizon=20)
    first = next(TUNERS[part].search(problem, L2.load(), 600, seed=0))
    # All slots advance together, by one window.
    assert first.num_steps == TUNERS[part].num_slots * problem.window
    assert TUNERS[part].num_slots > 1


def test_every_proof_is_a_test():
    assert set(PROOFS) == set(COLUMNS)
    for node in PROOFS.values():
        file, name = node.split("::")
        functions = ast.walk(ast.parse((ROOT / file).read_text()))
        assert name in {f.name for f in functions if isinstance(f, ast.FunctionDef)}
