"""One CPU device per core for large pairs, chosen before JAX is initialized."""

import subprocess
import sys

import pytest

from tests.conftest import command_environment

CODE = """
import jax
from lopt.optimizers.per_parameter_mlp import PerParameterMLP
from meta_train.runtime import cpu_devices
from meta_train.core.inner_training import InnerTraining
from tasks.supervised.mlp import MLP

cpu_devices._num_cores = lambda: {num_cores}
tasks = dict(large=MLP(width=256), small=MLP(width=8))
systems = [InnerTraining(tasks[name], PerParameterMLP()) for name in {names}]
cpu_devices.split_over_cores(systems, {population})
print(jax.device_count())
"""


@pytest.mark.parametrize(
    ("names", "population", "num_cores", "environment", "expected"),
    [
        (["large"], 16, 2, {}, 2),
        (["large"], 6, 4, {}, 3),
        (["large"], 7, 4, {}, 1),
        (["large"], 64, 64, {}, 8),
        (["small"], 16, 2, {}, 1),
        (["large", "small"], 16, 2, {}, 1),
        (["large"], 16, 2, {"JAX_NUM_CPU_DEVICES": "1"}, 1),
    ],
)
def test_cores_share_large_pairs_evenly(
    names, population, num_cores, environment, expected
):
    code = CODE.format(names=names, population=population, num_cores=num_cores)
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=command_environment(**environment),
        capture_output=True,
        text=True,
    )
    assert done.stdout.split() == [str(expected)], done.stderr
