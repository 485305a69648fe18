"""Plans for pods, from programs compiled for chips that are not attached."""

import dataclasses
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lopt.errors import UserError
from meta_train.analysis.hlo_cost import Collective, count_work, find_collectives
from meta_train.analysis.resource_plan import CHIPS, estimate_resources, tpu_devices
from meta_train.config.preset_configs import CONFIGS


def plan(topology, num_pairs, preset="quadratic-schedule"):
    config = CONFIGS[preset]
    estimator = config.estimator.resized(num_pairs)
    trainer = dataclasses.replace(config, estimator=estimator).make_trainer()
    return estimate_resources(trainer, trainer.load(), tpu_devices(topology))


@pytest.fixture(scope="module")
def compiler():
    return pytest.importorskip("libtpu", reason='NO COMPILER: pip install "lopt[tpu]"')


@pytest.mark.slow
@pytest.mark.parametrize(
    ("small", "large", "num_devices"),
    [("v5e:4x4", "v5e:16x16", 256), ("v4:4x4x4", "v4:8x8x8", 1024)],
)
def test_a_pod_exchanges_theta_once_and_needs_no_more_of_each_chip(
    small, large, num_devices, compiler
):
    first, second = (plan(name, 4 * len(tpu_devices(name))) for name in (small, large))
    assert second.num_devices == num_devices
    for found in (first, second):
        (exchange,) = found.collectives
        assert exchange.operation == "all-reduce"
        assert exchange.num_bytes < 100  # two elements of theta and six means
    assert first.memory == second.memory
    chip = CHIPS[large.partition(":")[0]]
    assert second.seconds(chip) < 1.5 * second.seconds(chip, 1)
    assert second.largest_population(chip) > second.population


@pytest.mark.slow
def test_several_systems_exchange_their_gradients_at_once(compiler):
    (exchange,) = plan("v5e:4x4", 64, "tables-mlp").collectives
    assert exchange.operation == "all-reduce"
    config = CONFIGS["tables-mlp"]
    theta = sum(
        x.nbytes
        for x in jax.tree.leaves(config.systems[0].init_theta(jax.random.key(0)))
    )
    assert 2 * theta < exchange.num_bytes < 2 * theta + 100


def test_a_population_that_the_chips_do_not_divide_is_refused(compiler):
    with pytest.raises(UserError, match=r"multiple of the 16 devices.*Try 16"):
        plan("v5e:4x4", 20)


def test_an_unknown_topology_is_refused_with_those_that_are_known():
    with pytest.raises(UserError, match=r"v5e:16x16.*got 'v9:3x3'"):
        tpu_devices("v9:3x3")


def test_the_plan_of_this_machine_is_checked_by_a_measurement(lopt_command, tmp_path):
    arguments = ("--platform=cpu", "--num-pairs=8", "--out=out")
    done = lopt_command("plan", "quadratic-schedule", *arguments)
    assert done.returncode == 0, done.stderr
    for text in ("memory of a device", "estimated time", "measured time", "Assumed"):
        assert text in done.stdout
    content = json.loads((tmp_path / "out" / "plan.json").read_text())
    assert content["measured_seconds"] > 0
    assert content["collectives"] == []
    assert (tmp_path / "out" / "plan.png").stat().st_size > 10_000


def test_work_counts_loops_and_memory_traffic():
    def function(x):
        return jax.lax.scan(lambda s, _: (jnp.tanh(s @ s), None), x, None, length=7)[0]

    x = jnp.eye(64)
    work = count_work(jax.jit(function).lower(x).compile().as_text())
    np.testing.assert_allclose(work.products, 7 * 2 * 64**3, rtol=0.01)
    np.testing.assert_allclose(work.others, 7 * 64**2, rtol=0.01)
    least = 7 * 4 * x.nbytes  # product and tanh each read and write one array
    assert least <= work.moved < 2 * least
    assert 14 <= work.operations < 60


def test_only_the_slice_that_is_read_counts():
    rows = jnp.ones((10_000, 8))
    function = lambda rows, i: jax.lax.dynamic_slice(rows, (i, 0), (2, 8)) + 1.0
    work = count_work(jax.jit(function).lower(rows, 3).compile().as_text())
    assert work.moved < 1_000


def test_collectives_are_found_with_their_size():
    text = """HloModule m
ENTRY %main (p: f32[8]) -> f32[8] {
  %p = f32[8]{0} parameter(0)
  %q = (f32[8]{0:T(8)S(1)}, s32[]) all-reduce-start(%p, %p), to_apply=%add
  ROOT %r = f32[8]{0} copy(%p)
}
"""
    assert find_collectives(text) == [Collective("all-reduce", 36)]
