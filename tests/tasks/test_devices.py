"""Tasks give the same results on any number of devices."""

import json
import subprocess
import sys

import jax
import numpy as np
import pytest

from evaluation.baselines import Baseline
from meta_train.estimators import PES
from meta_train.inner_training import InnerTraining
from meta_train.outer_optimizer import OuterAdam
from meta_train.trainer import Trainer
from meta_train.truncation import Truncation
from tasks.base import Family
from tasks.zoo import ZOO
from tests.conftest import command_environment, needs_data
from tests.tasks.test_zoo import SLOW

FAST = ["quadratic"]
REST = [
    name
    for name, entry in ZOO.items()
    if isinstance(entry.problem, Family) and not needs_data(entry.problem)
    if name not in {*FAST, *SLOW}
]


def train(name):
    """Returns the loss and theta after two windows of four pairs."""
    problem = ZOO[name].problem
    assert isinstance(problem, Family)
    trainer = Trainer(
        systems=(InnerTraining(problem, Baseline("adam")),),
        estimator=PES(Truncation(length=2, horizon=4), num_pairs=4),
        outer_optimizer=OuterAdam(),
        num_outer_steps=2,
    )
    data = trainer.load()
    state = trainer.init(data, 0)
    state, metrics = trainer.run(data, state, 2)
    leaves = [np.asarray(x).ravel() for x in jax.tree.leaves(state.theta)]
    return [float(metrics["loss"]), *np.concatenate(leaves).tolist()]


def results(names, num_devices):
    code = (
        "import sys, json; from tests.tasks.test_devices import train; "
        "print(json.dumps([train(name) for name in sys.argv[1:]]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *names],
        env=command_environment(JAX_NUM_CPU_DEVICES=str(num_devices)),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize(
    "names", [FAST, pytest.param(REST, marks=pytest.mark.slow, id="rest")]
)
def test_every_number_of_devices_gives_the_same(names):
    one, four = results(names, 1), results(names, 4)
    for name, expected, found in zip(names, one, four, strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-4, err_msg=name)
