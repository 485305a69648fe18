"""Conformance of every registered optimizer to the contract of optax optimizers."""

import functools
import re
from typing import NamedTuple

import chex
import equinox as eqx
import flax.core
import flax.linen as nn
import flax.serialization
import jax
import jax.numpy as jnp
import numpy as np
import optax
import orbax.checkpoint
import pytest
from flax import nnx

from lopt.errors import UserError
from lopt.optimizers.adafactor_mlp import AdafactorMLP
from lopt.optimizers.celo2 import Celo2
from lopt.registry import OPTIMIZERS

NUM_STEPS = 10
PARAMS = {"b": np.linspace(-1, 1, 3), "w": np.linspace(-1, 2, 6).reshape(2, 3)}
PARAMS = jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), PARAMS)
# Every registered optimizer, and those that `lopt import` configures differently.
MAKERS = {
    **OPTIMIZERS,
    "AdafactorMLP-released": lambda: AdafactorMLP(as_released=True),
    "Celo2-base": lambda: Celo2(orthogonalize=False, adam_vectors=False),
}
every_optimizer = pytest.mark.parametrize("name", MAKERS)


@functools.cache
def bound(name):
    optimizer = MAKERS[name]()
    return optimizer, optimizer.init_theta(jax.random.key(0))


def make(name, num_steps=NUM_STEPS):
    optimizer, theta = bound(name)
    return optimizer.as_optax(theta, num_steps)


def gradients(params, step=0):
    """Compute gradients that depend on shapes, dtypes and the step only."""
    wave = lambda x: np.sin(np.arange(1.0, jnp.size(x) + 1) + step)
    return jax.tree.map(
        lambda x: jnp.asarray(wave(x).reshape(jnp.shape(x)), jnp.result_type(x)), params
    )


def loss(step=0):
    return jnp.asarray(1 / (step + 1), jnp.float32)


def train(tx, params=PARAMS, num_steps=2, state=None, **extra):
    """Take a few steps; return the last updates, the parameters and the state."""
    state, updates = tx.init(params) if state is None else state, None
    for i in range(num_steps):
        updates, state = tx.update(
            gradients(params, i), state, params, value=loss(i), **extra
        )
        params = optax.apply_updates(params, updates)
    return updates, params, state


@functools.cache
def plain(name):
    return train(make(name))


def error_without(name, *left_out):
    """Get the error of `update` without some arguments, or `None` if it succeeds."""
    tx, given = make(name), {"params": PARAMS, "value": loss()}
    given = {k: v for k, v in given.items() if k not in left_out}
    try:
        updates, _ = tx.update(gradients(PARAMS), tx.init(PARAMS), **given)
    except UserError as error:
        return str(error)
    chex.assert_trees_all_equal(updates, train(tx, num_steps=1)[0])
    return None


# Arguments of `update`.


@every_optimizer
def test_unknown_keywords_are_ignored(name):
    tx = make(name)
    assert isinstance(tx, optax.GradientTransformationExtraArgs)
    chex.assert_trees_all_equal(train(tx, unknown_keyword=3), plain(name))


@every_optimizer
def test_the_loss_is_required_only_where_it_is_used(name):
    error = error_without(name, "value")
    assert (error is not None) == getattr(bound(name)[0], "reads_loss", bool(error))
    assert error is None or re.search("reads the loss.*value=loss", error)


@every_optimizer
def test_params_are_required_only_where_they_are_used(name):
    error = error_without(name, "params")
    assert (error is not None) == getattr(bound(name)[0], "reads_params", bool(error))
    assert error is None or re.search("reads the parameters.*state, params", error)


@every_optimizer
def test_integer_parameters_are_refused(name):
    with pytest.raises(UserError, match=r"floating-point.*int32.*\['n'\].*masked"):
        make(name).init({"n": jnp.arange(3), "w": jnp.ones(3)})


@every_optimizer
@pytest.mark.parametrize(
    "changed",
    [{**PARAMS, "w": jnp.ones((4, 3))}, {**PARAMS, "new": jnp.ones(3)}],
    ids=["shape", "structure"],
)
def test_parameters_that_changed_since_init_are_refused(name, changed):
    tx = make(name)
    state = tx.init(PARAMS)
    if len(jax.tree.leaves(state)) == len(jax.tree.leaves(tx.init({}))):
        pytest.skip("it remembers nothing of a tensor")
    with pytest.raises(UserError, match=r"Call `init` again"):
        tx.update(gradients(changed), state, changed, value=loss())


@every_optimizer
@pytest.mark.parametrize(
    "other", [jnp.ones((2, 1)), jnp.ones((3, 2)), None], ids=["wide", "turned", "none"]
)
def test_parameters_unlike_their_gradients_are_refused(name, other):
    tx = make(name)
    with pytest.raises(UserError, match=r"shapes of their gradients; got .*\(2, 3\)"):
        tx.update(gradients(PARAMS), tx.init(PARAMS), {**PARAMS, "w": other}, value=1.0)


@every_optimizer
def test_integer_gradients_are_refused(name):
    tx = make(name)
    grads = {**PARAMS, "b": jnp.arange(3)}
    with pytest.raises(UserError, match=r"gradients must be.*int32.*\['b'\]"):
        tx.update(grads, tx.init(PARAMS), PARAMS, value=loss())


def test_non_array_leaves_are_refused():
    for model in ({"activation": jnp.tanh}, {"name": "a text"}):
        with pytest.raises(UserError, match=r"floating-point.*eqx\.filter"):
            make("PerParameterMLP").init(model)


@every_optimizer
def test_a_loss_that_is_read_must_be_a_scalar(name):
    tx = make(name)
    update = lambda value: tx.update(
        gradients(PARAMS), tx.init(PARAMS), PARAMS, value=value
    )
    if not error_without(name, "value"):
        chex.assert_trees_all_equal(update(jnp.ones(10)), update(loss()))
        return
    with pytest.raises(UserError, match=r"must be a scalar; got .*\(10,\).*mean"):
        update(jnp.ones(10))


# Pytrees.


class Pair(NamedTuple):
    first: object
    second: object


def nnx_model():
    return nnx.Linear(2, 3, rngs=nnx.Rngs(0))


def equinox_model():
    linear = eqx.nn.Linear(3, 2, use_bias=False, key=jax.random.key(0))
    return eqx.nn.Sequential([linear, eqx.nn.Lambda(jax.nn.sigmoid)])


# Few distinct shapes, as each one has to be compiled.
VECTOR, MATRIX = PARAMS["b"], PARAMS["w"]
ONE = {"w": MATRIX}
TREES = {
    "linen": lambda: nn.Dense(3).init(jax.random.key(0), jnp.ones((1, 2))),
    "nnx": lambda: nnx.state(nnx_model(), nnx.Param),
    "equinox": lambda: eqx.filter(equinox_model(), eqx.is_inexact_array),
    "haiku": lambda: {
        "net/~/linear_0": {"w": MATRIX, "b": VECTOR},
        "net": {"w": MATRIX},
    },
    "array": lambda: VECTOR,
    "scalar": lambda: jnp.ones(()),
    "scalars": lambda: {"a": jnp.ones(()), "b": jnp.ones(())},
    "numpy": lambda: jax.tree.map(np.asarray, PARAMS),
    "empty": dict,
    "no elements": lambda: {"a": jnp.zeros((0, 3)), "b": VECTOR},
    "nested": lambda: Pair([VECTOR, (MATRIX, {})], {"x": {"y": [VECTOR]}}),
    "none leaves": lambda: {"a": None, "b": VECTOR, "c": [None, MATRIX]},
    "frozen dict": lambda: flax.core.freeze({"layer": PARAMS}),
    "convolution": lambda: {"kernel": jnp.ones((3, 3, 1, 2))},
    "mixed": lambda: [VECTOR.astype(jnp.bfloat16), MATRIX, VECTOR.astype(jnp.float16)],
}


# Trees whose tensors are those of other trees, in other containers.
CONTAINERS = {
    "nnx",
    "equinox",
    "haiku",
    "array",
    "numpy",
    "empty",
    "nested",
    "frozen dict",
}


def trees_by_optimizer():
    """Yield all trees for one optimizer per `as_optax`, which handles the containers.

    Optimizers that share it have only the trees of other tensors.
    """
    seen = set()
    for name in MAKERS:
        adapter = type(MAKERS[name]()).as_optax
        yield from ((name, tree) for tree in TREES if tree not in CONTAINERS)
        if adapter not in seen:
            yield from ((name, tree) for tree in CONTAINERS)
        seen.add(adapter)


@pytest.mark.parametrize(("name", "tree"), sorted(trees_by_optimizer()))
def test_any_pytree_equals_the_list_of_its_leaves(name, tree):
    tx, params = make(name), TREES[tree]()
    updates, new_params, state = train(tx, params)
    chex.assert_trees_all_equal_shapes_and_dtypes(updates, params, new_params)
    chex.assert_trees_all_equal_shapes_and_dtypes(state, tx.init(params))
    chex.assert_tree_all_finite((updates, state))
    leaves = train(tx, jax.tree.leaves(params))
    for ours, alone in zip((updates, new_params, state), leaves, strict=True):
        chex.assert_trees_all_equal(jax.tree.leaves(ours), jax.tree.leaves(alone))


@every_optimizer
def test_every_tensor_moves(name):
    for before, after in zip(PARAMS.values(), plain(name)[1].values(), strict=True):
        assert not jnp.any(before == after)


@every_optimizer
def test_half_precision_has_a_state_in_float32(name):
    tx = make(name)
    half = jax.tree.map(lambda x: x.astype(jnp.bfloat16), PARAMS)
    grads = gradients(half)
    updates, state = tx.update(grads, tx.init(half), half, value=loss())
    assert {x.dtype for x in jax.tree.leaves(updates)} == {jnp.dtype(jnp.bfloat16)}
    dtypes = {x.dtype for x in jax.tree.leaves(state)}
    assert dtypes <= {jnp.dtype(x) for x in (jnp.float32, jnp.int32, bool)}
    # The same computation in float32 differs only by the final rounding.
    grads, full = (optax.tree.cast(x, jnp.float32) for x in (grads, half))
    exact, exact_state = tx.update(grads, tx.init(full), full, value=loss())
    chex.assert_trees_all_equal(updates, optax.tree.cast(exact, jnp.bfloat16))
    chex.assert_trees_all_equal(state, exact_state)


@every_optimizer
def test_gradients_may_be_none(name):
    tx = make(name)
    grads = {**gradients(PARAMS), "b": None}
    updates, state = tx.update(grads, tx.init(PARAMS), PARAMS, value=loss())
    assert updates["b"] is None
    chex.assert_shape(updates["w"], (2, 3))
    chex.assert_trees_all_equal_structs(state, tx.init(PARAMS))


@every_optimizer
def test_nnx_optimizer_wraps_it(name):
    model = nnx_model()
    optimizer = nnx.Optimizer(model, make(name), wrt=nnx.Param)
    params = nnx.to_pure_dict(nnx.state(model, nnx.Param))
    for i in range(2):
        grads = gradients(nnx.state(model, nnx.Param), i)
        optimizer.update(model, grads, value=loss(i))
    new_params = nnx.to_pure_dict(nnx.state(model, nnx.Param))
    chex.assert_trees_all_equal(new_params, train(make(name), params)[1])


@every_optimizer
def test_an_equinox_model_is_updated(name):
    model = equinox_model()
    tx = make(name)
    state = tx.init(eqx.filter(model, eqx.is_inexact_array))
    loss_of = lambda model: jnp.sum(model(jnp.ones(3)))
    value, grads = eqx.filter_value_and_grad(loss_of)(model)
    params = eqx.filter(model, eqx.is_inexact_array)
    updates, _ = tx.update(grads, state, params, value=value)
    moved = eqx.apply_updates(model, updates)
    assert loss_of(moved) != value


# Optax wrappers.

SAME = {
    "chain": lambda tx: optax.chain(optax.clip_by_global_norm(1e6), tx),
    "named_chain": lambda tx: optax.named_chain(("learned", tx)),
    "masked": lambda tx: optax.masked(tx, {"w": True, "b": True}),
    "multi_transform": lambda tx: optax.multi_transform({"all": tx}, "all"),
}


@every_optimizer
@pytest.mark.parametrize("wrapper", SAME)
def test_transparent_wrappers_change_nothing(name, wrapper):
    updates, params, _ = train(optax.with_extra_args_support(SAME[wrapper](make(name))))
    chex.assert_trees_all_equal((updates, params), plain(name)[:2])


@every_optimizer
def test_masked_tensors_are_left_to_others(name):
    updates, _, _ = train(
        optax.masked(make(name), {"w": True, "b": False}), num_steps=1
    )
    alone, _, _ = train(make(name), {"w": MATRIX}, num_steps=1)
    chex.assert_trees_all_equal(updates["b"], gradients(PARAMS)["b"])
    chex.assert_trees_all_equal(updates["w"], alone["w"])


@every_optimizer
def test_multi_transform_splits_a_model(name):
    transforms = {"learned": make(name), "sgd": optax.sgd(0.5)}
    tx = optax.multi_transform(transforms, {"w": "learned", "b": "sgd"})
    updates, _, _ = train(tx, num_steps=1)
    alone, _, _ = train(make(name), {"w": MATRIX}, num_steps=1)
    chex.assert_trees_all_equal(updates["b"], -0.5 * gradients(PARAMS)["b"])
    chex.assert_trees_all_equal(updates["w"], alone["w"])


@every_optimizer
def test_hyperparameters_can_be_injected(name):
    tx = optax.inject_hyperparams(lambda num_steps: make(name, num_steps))(NUM_STEPS)
    updates, params, state = train(tx)
    chex.assert_trees_all_equal((updates, params), plain(name)[:2])
    assert state.hyperparams["num_steps"] == NUM_STEPS


@every_optimizer
def test_gradients_that_are_not_finite_are_skipped(name):
    tx = optax.apply_if_finite(make(name), 3)
    update = jax.jit(tx.update)  # without `jit`, every call would compile again
    updates, state = update(gradients(ONE), tx.init(ONE), ONE, value=loss())
    expected = train(make(name), ONE, num_steps=1)[0]
    chex.assert_trees_all_close(updates, expected, rtol=1e-4)
    broken = {"w": gradients(ONE)["w"].at[0].set(jnp.nan)}
    updates, skipped = update(broken, state, ONE, value=loss())
    chex.assert_trees_all_equal(updates, optax.tree.zeros_like(ONE))
    chex.assert_trees_all_equal(skipped.inner_state, state.inner_state)


@every_optimizer
def test_gradients_are_accumulated(name):
    tx = optax.MultiSteps(make(name), 2)
    update, state = jax.jit(tx.update), tx.init(ONE)
    halves = [{"w": scale * gradients(ONE)["w"]} for scale in (0.5, 1.5)]
    first, state = update(halves[0], state, ONE, value=loss())
    second, _ = update(halves[1], state, ONE, value=loss())
    chex.assert_trees_all_equal(first, optax.tree.zeros_like(ONE))
    expected = train(make(name), ONE, num_steps=1)[0]
    chex.assert_trees_all_close(second, expected, rtol=1e-4)


@every_optimizer
def test_lookahead_follows_its_fast_parameters(name):
    tx = optax.lookahead(make(name), sync_period=5, slow_step_size=0.5)
    params = optax.LookaheadParams.init_synced(PARAMS)
    state = tx.init(params)
    if error_without(name, "value"):  # lookahead does not forward `value`
        with pytest.raises(UserError, match="value=loss"):
            tx.update(gradients(PARAMS), state, params)
        return
    for i in range(2):
        updates, state = tx.update(gradients(PARAMS, i), state, params)
        params = optax.apply_updates(params, updates)
    chex.assert_trees_all_close(params.fast, plain(name)[1], rtol=1e-6)
    chex.assert_trees_all_equal(params.slow, PARAMS)


# JAX modes and transformations.


@pytest.mark.parametrize("name", ["PerParameterMLP", "AdafactorMLP"])
def test_it_works_without_jit(name):
    expected = train(make(name), ONE, num_steps=1)
    with jax.disable_jit():
        found = train(make(name), ONE, num_steps=1)
    chex.assert_trees_all_close(found, expected, rtol=1e-4, atol=1e-6)


@every_optimizer
def test_x64_changes_only_the_dtype_of_updates(name):
    expected, _, like = train(make(name), ONE, num_steps=1)
    with jax.enable_x64(True):
        theta = MAKERS[name]().init_theta(jax.random.key(0))
        chex.assert_trees_all_equal_shapes_and_dtypes(theta, bound(name)[1])
        tx, params = make(name), optax.tree.cast(ONE, jnp.float64)
        grads, state = gradients(params), tx.init(params)
        updates, after = jax.jit(tx.update)(grads, state, params, value=loss())
        assert updates["w"].dtype == jnp.float64
        chex.assert_trees_all_equal_shapes_and_dtypes(state, after, like)
    chex.assert_trees_all_close(updates, expected, rtol=1e-4)


@every_optimizer
def test_it_compiles_once_and_donates_its_buffers(name):
    tx = make(name)

    @functools.partial(jax.jit, donate_argnums=(1, 2))
    @chex.assert_max_traces(1)
    def step(grads, params, state, value):
        updates, state = tx.update(grads, state, params, value=value)
        return optax.apply_updates(params, updates), state

    # Copies, as donated buffers are deleted.
    params, state = jax.tree.map(jnp.copy, PARAMS), tx.init(PARAMS)
    for i in range(2):
        params, state = step(gradients(PARAMS, i), params, state, loss(i))
    chex.assert_trees_all_close(params, plain(name)[1], rtol=1e-5)
    chex.assert_trees_all_close(state, plain(name)[2], rtol=1e-4, atol=1e-6)


@every_optimizer
def test_vmap_over_parameters_equals_a_loop(name):
    tx = make(name)
    sets = [{"w": scale * MATRIX} for scale in (1.0, -2.0)]

    def step(params):
        grads = jax.tree.map(jnp.sin, params)
        return tx.update(grads, tx.init(params), params, value=loss())[0]

    together = jax.jit(jax.vmap(step))({"w": jnp.stack([x["w"] for x in sets])})
    alone = jnp.stack([step(params)["w"] for params in sets])
    chex.assert_trees_all_close(together["w"], alone, rtol=1e-4, atol=1e-8)


@every_optimizer
def test_scan_equals_a_loop(name):
    tx = make(name)

    def step(carry, x):
        params, state = carry
        grads, value = x
        updates, state = tx.update(grads, state, params, value=value)
        return (optax.apply_updates(params, updates), state), updates

    steps = [(gradients(ONE, i), loss(i)) for i in range(2)]
    stacked = jax.tree.map(lambda *x: jnp.stack(x), *steps)
    (params, _), updates = jax.lax.scan(step, (ONE, tx.init(ONE)), stacked)
    last_updates, last_params, _ = train(tx, ONE)
    chex.assert_trees_all_close(updates["w"][-1], last_updates["w"], rtol=1e-4)
    chex.assert_trees_all_close(params, last_params, rtol=1e-6)


# Optimizer state.


@every_optimizer
def test_flax_serialises_the_state(name):
    _, params, state = plain(name)
    data = flax.serialization.to_bytes(state)
    restored = flax.serialization.from_bytes(make(name).init(PARAMS), data)
    chex.assert_trees_all_equal(restored, state)
    chex.assert_trees_all_equal(
        train(make(name), params, state=restored),
        train(make(name), params, state=state),
    )


@every_optimizer
def test_orbax_serialises_the_state(name, tmp_path):
    _, _, state = plain(name)
    with orbax.checkpoint.StandardCheckpointer() as checkpointer:
        checkpointer.save(tmp_path / "state", state)
        checkpointer.wait_until_finished()
        fresh = jax.eval_shape(make(name).init, PARAMS)
        restored = checkpointer.restore(tmp_path / "state", fresh)
    chex.assert_trees_all_equal(restored, state)


@every_optimizer
def test_time_features_are_clamped_past_the_horizon(name):
    tx, (_, params, state) = make(name), plain(name)
    # Late enough that every bias correction is 1.
    late = [optax.tree.set(state, count=jnp.asarray(n)) for n in (10**5, 10**6)]
    updates = [tx.update(gradients(PARAMS), s, params, value=loss())[0] for s in late]
    chex.assert_trees_all_equal(*updates)
    chex.assert_tree_all_finite(updates[0])
