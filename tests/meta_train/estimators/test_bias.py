"""Bias of gradient estimators against exact meta-gradients.

Every registered estimator is tested against its own `is_unbiased`, so that a new one is
covered as soon as it is registered.
"""

import dataclasses

import numpy as np
import pytest

from meta_train.core.objectives import OBJECTIVES
from meta_train.estimators import (
    ESTIMATORS,
    PES,
    FullBackprop,
    FullES,
    GuidedES,
    Reparameterization,
    TruncatedBackprop,
    TruncatedES,
)
from tests.meta_train.estimators.truth import (
    HORIZON,
    PROBLEMS,
    exact_gradient,
    mean_and_error,
)

WHOLE_EPISODES = {FullES, FullBackprop, Reparameterization}
LENGTHS = (1, 4, HORIZON)
# The period divides neither the window length nor the horizon.
OTHER_FIELDS = {"period": 5, "num_windows": 4.0}


def make(kind, problem, length, **fields):
    """Build an estimator with a population size that suits the cost of a member."""
    names = {field.name for field in dataclasses.fields(kind)}
    fields = OTHER_FIELDS | {"std": PROBLEMS[problem].std} | fields
    if kind.population_field == "num_pairs":
        fields["num_pairs"] = 1024
    else:
        fields["num_episodes"] = 64 if kind.one_by_one else 512
        fields["std"] = 1e-4  # derivatives need no finite perturbation
    fields = {name: value for name, value in fields.items() if name in names}
    return kind(PROBLEMS[problem].truncation(length), **fields)


def deviation(estimator, problem, objective, key, enough=0.04):
    """Compute the bias in standard errors, and the error relative to the gradient."""
    exact = exact_gradient(problem, objective, estimator.truncation.length)
    norm = np.linalg.norm(exact)
    mean, error = mean_and_error(estimator, problem, objective, key, enough * norm)
    error = max(error, 3e-5 * norm)  # rounding, if nothing is random
    return np.linalg.norm(mean - exact) / error, error / norm


def cases():
    """Yield all distinct combinations; most of them are marked as slow."""
    for name, kind in ESTIMATORS.items():
        for problem in PROBLEMS:
            for length in LENGTHS:
                if PROBLEMS[problem].min_horizon and length == HORIZON:
                    continue  # a window cannot be longer than an episode
                estimator = make(kind, problem, length)
                if not estimator.is_unbiased:
                    continue
                if kind in WHOLE_EPISODES and length != 4:
                    continue  # independent of the window length
                for objective in OBJECTIVES:
                    easy = problem == "influence balancing" and objective == "mean"
                    # The final loss is telescoped in the same way for all systems.
                    hard = objective == "final" and problem != "recurrence"
                    fast = (length == 4 and not hard) or easy
                    if objective not in ("mean", "final"):
                        fast = (length, problem, objective) == (
                            *(4, "random horizon"),
                            "late-log",
                        )
                    yield pytest.param(
                        estimator,
                        problem,
                        objective,
                        id=f"{name}-{problem}-{objective}-K={length}",
                        marks=() if fast else pytest.mark.slow,
                    )


@pytest.mark.parametrize(("estimator", "problem", "objective"), list(cases()))
def test_unbiased_estimators_are_unbiased(estimator, problem, objective, key):
    errors_off, error = deviation(estimator, problem, objective, key)
    assert error < 0.05  # or the test has no power
    assert errors_off < 4, (
        f"{type(estimator).__name__}.is_unbiased is True, but on {problem} its mean is "
        f"{errors_off:.1f} standard errors from the exact gradient"
    )


@pytest.mark.parametrize(
    "objective", ["mean", pytest.param("final", marks=pytest.mark.slow)]
)
@pytest.mark.parametrize("problem", PROBLEMS)
@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        (TruncatedES, {}),
        (TruncatedBackprop, {}),
        (Reparameterization, {"whole_episodes": False}),
        (GuidedES, {}),
    ],
)
def test_biased_estimators_are_biased(kind, fields, problem, objective, key):
    estimator = make(kind, problem, 4, **fields)
    assert not estimator.is_unbiased
    errors_off, _ = deviation(estimator, problem, objective, key)
    assert errors_off > 6


@pytest.mark.parametrize("kind", [TruncatedES, TruncatedBackprop])
def test_truncation_without_a_cut_is_unbiased(kind, key):
    whole = make(kind, "recurrence", HORIZON)
    assert whole.is_unbiased
    errors_off, error = deviation(whole, "recurrence", "mean", key)
    assert errors_off < 4
    assert error < 0.05


def test_pes_is_unbiased_when_all_episodes_start_together(key):
    pes = make(PES, "recurrence", 4)
    together = dataclasses.replace(pes.truncation, staggered=False)
    pes = dataclasses.replace(pes, truncation=together)
    errors_off, error = deviation(pes, "recurrence", "mean", key)
    assert errors_off < 4
    assert error < 0.05
