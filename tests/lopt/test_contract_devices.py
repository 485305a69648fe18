"""Conformance of every registered optimizer on several devices.

The devices exist in a subprocess only: `python -c` calls `report_devices`.
"""

import functools
import json

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P

from tests.conftest import on_devices
from tests.lopt.test_contract import MAKERS, every_optimizer, gradients, loss, make

LARGE = {"w": jnp.linspace(-1, 2, 24).reshape(3, 8)}
SPEC = P(None, "x")


def lost_shardings(mesh, tree):
    """List leaves that contain the parameter's shape but are not sharded like it."""
    (param,), lost = LARGE.values(), []
    for leaf in jax.tree.leaves(tree):
        more = (None,) * (leaf.ndim - param.ndim)  # such as units of a network
        if leaf.ndim < param.ndim:
            continue
        elif leaf.shape[-param.ndim :] == param.shape:
            spec = P(*more, *SPEC)
        elif leaf.shape[: param.ndim] == param.shape:
            spec = P(*SPEC, *more)
        else:
            continue
        if not leaf.sharding.is_equivalent_to(NamedSharding(mesh, spec), leaf.ndim):
            lost.append(f"{leaf.shape}: {leaf.sharding}")
    return lost


@functools.cache
def on_one_device(name):
    tx = make(name)
    step = jax.jit(functools.partial(tx.update, value=loss()))
    return step(gradients(LARGE), tx.init(LARGE), LARGE)


def sharded(name, kind):
    """List lost shardings and compute the largest difference from one device."""
    tx, expected, lost = make(name), on_one_device(name), {}
    mesh = jax.make_mesh((4,), ("x",), axis_types=(kind,))
    step = jax.jit(functools.partial(tx.update, value=loss()))
    with jax.set_mesh(mesh):
        place = lambda tree: jax.device_put(tree, NamedSharding(mesh, SPEC))
        params = place(LARGE)
        state = tx.init(params)
        lost["init"] = lost_shardings(mesh, state)
        lost["jit init"] = lost_shardings(mesh, jax.jit(tx.init)(params))
        updates, state = step(place(gradients(LARGE)), state, params)
        lost["update"] = lost_shardings(mesh, state)
    return lost, largest_difference((updates, state), expected)


def data_parallel(name):
    """Compute the largest difference of a data-parallel step from one device."""
    tx, expected = make(name), on_one_device(name)
    mesh = jax.make_mesh((4,), ("x",), axis_types=(AxisType.Auto,))

    def step(share, params, state):
        grads = jax.tree.map(lambda x: jax.lax.pmean(x[0], "x"), share)
        return tx.update(grads, state, params, value=loss())

    step = jax.shard_map(step, mesh=mesh, in_specs=(P("x"), P(), P()), out_specs=P())
    # Per-device gradients with the full gradient as their mean.
    weights = jnp.asarray([0.0, 2.0, 0.5, 1.5]).reshape(4, 1, 1)
    shares = jax.tree.map(lambda x: weights * x[None], gradients(LARGE))
    return largest_difference(jax.jit(step)(shares, LARGE, tx.init(LARGE)), expected)


def largest_difference(found, expected):
    chex.assert_trees_all_equal_shapes_and_dtypes(found, expected)
    pairs = zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True)
    off = lambda a, b: np.max(np.abs(np.subtract(a, b, dtype=float)), initial=0.0)
    return max(float(off(a, b)) for a, b in pairs)


CHECKS = {
    "auto": functools.partial(sharded, kind=AxisType.Auto),
    "explicit": functools.partial(sharded, kind=AxisType.Explicit),
    "shard_map": data_parallel,
}


def report_devices(names):
    """Print the result of each check for some optimizers as JSON; errors as text."""
    report = {}
    for name in names:
        for check, run in CHECKS.items():
            try:
                report[f"{name} {check}"] = run(name)
            except Exception as error:
                report[f"{name} {check}"] = f"{type(error).__name__}: {error}"
    print(json.dumps(report))


@pytest.fixture(scope="module")
def devices(request):
    """Output of `report_devices` on four devices, for the selected tests."""
    here = [item for item in request.session.items if item.module is request.module]
    names = {item.callspec.params["name"] for item in here if hasattr(item, "callspec")}
    code = f"from {__name__} import report_devices as r; r({sorted(names & {*MAKERS})})"
    return on_devices(4, code)


@every_optimizer
def test_the_state_is_sharded_like_the_parameters(name, devices):
    assert not isinstance(devices[f"{name} auto"], str), devices[f"{name} auto"]
    lost, difference = devices[f"{name} auto"]
    # A compiled `init` reads no parameter, so XLA chooses the sharding of its zeros.
    # The same holds for Adam.
    assert {**lost, "jit init": []} == {"init": [], "jit init": [], "update": []}
    assert difference < 1e-5


@every_optimizer
def test_shardings_in_types_are_kept(name, devices):
    assert not isinstance(devices[f"{name} explicit"], str), devices[f"{name} explicit"]
    lost, difference = devices[f"{name} explicit"]
    assert lost == {"init": [], "jit init": [], "update": []}
    assert difference < 1e-5


@every_optimizer
def test_shard_map_over_the_data(name, devices):
    assert not isinstance(devices[f"{name} shard_map"], str), devices
    assert devices[f"{name} shard_map"] < 1e-5
