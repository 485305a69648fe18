"""Updates of hidden matrices scale with 1 / fan-in; all others are unchanged."""

import chex
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import lopt
from lopt.optimizers.mu_transfer import MuTransfer, hidden_factors
from lopt.optimizers.per_parameter_mlp import PerParameterMLP
from lopt.optimizers.scheduled_sgd import ScheduledSGD
from lopt.registry import OPTIMIZERS
from tasks.supervised.convolutional import ConvNet
from tasks.supervised.language import RecurrentLM, TransformerLM
from tasks.supervised.mlp import MLP


def shapes_of(task):
    return jax.eval_shape(task.init_params, jax.random.key(0))


def scaled(params, base_fan_in=1):
    """Compute the inverse factors of hidden tensors by path."""
    factors = hidden_factors(params, base_fan_in)
    return {
        jax.tree_util.keystr(path[1:], simple=True, separator="/"): 1 / factor
        for path, factor in jax.tree_util.tree_leaves_with_path(factors)
        if factor != 1
    }


def test_hidden_layers_of_an_mlp():
    found = scaled(shapes_of(MLP(width=24, depth=3)))
    assert found == pytest.approx({"Dense_1/kernel": 24, "Dense_2/kernel": 24})


def test_fan_in_of_convolutions_includes_the_window():
    found = scaled(shapes_of(ConvNet(width=16)))
    assert found == pytest.approx({"Conv_1/kernel": 144, "Conv_2/kernel": 144})


@pytest.mark.parametrize("cell", ["lstm", "gru"])
def test_hidden_layers_of_a_recurrent_network(cell):
    params = shapes_of(RecurrentLM(cell=cell, width=20))
    found = scaled(params)
    names = {
        jax.tree_util.keystr(path[1:], simple=True, separator="/")
        for path, _ in jax.tree_util.tree_leaves_with_path(params)
    }
    assert found == pytest.approx(
        {name: 20 for name in names if "Cell" in name and name.endswith("kernel")}
    )
    assert len(found) == {"lstm": 8, "gru": 6}[cell]


def test_hidden_layers_of_a_transformer():
    found = scaled(shapes_of(TransformerLM(width=24)))
    assert found["Dense_0/kernel"] == pytest.approx(24)
    assert found["Dense_1/kernel"] == pytest.approx(96)
    assert "Dense_2/kernel" not in found
    assert "Embed_0/embedding" not in found


def test_a_recurrent_square_matrix_alone_between_two_layers_is_hidden():
    shapes = {"input": (5, 8), "recurrent": (8, 8), "output": (8, 3), "scale": ()}
    factors = hidden_factors({name: jnp.zeros(s) for name, s in shapes.items()})
    assert factors == {"input": 1, "recurrent": 1 / 8, "output": 1, "scale": 1}


class Embedded(nnx.Module):
    def __init__(self, rngs):
        self.embed = nnx.Embed(100, 32, rngs=rngs)
        self.hidden = nnx.Linear(32, 32, rngs=rngs)
        self.output = nnx.Linear(32, 100, rngs=rngs)


def test_variables_of_nnx_have_the_names_that_they_are_stored_by():
    state = nnx.state(Embedded(nnx.Rngs(0)), nnx.Param)
    found = jax.tree.leaves(hidden_factors(state))
    assert found == jax.tree.leaves(hidden_factors(nnx.to_pure_dict(state)))
    assert sorted(found) == [1 / 32, 1, 1, 1, 1]


def test_linen_boxes_are_unwrapped():
    table = jnp.ones((100, 32))
    boxed = {"embedding": nn.Partitioned(table, names=("vocabulary", None))}
    layers = {"hidden": jnp.ones((32, 32)), "output": jnp.ones((32, 100))}
    found = jax.tree.leaves(hidden_factors({**boxed, **layers}))
    assert found == [1, 1 / 32, 1]


def updates_of(width, key, base_fan_in=1):
    optimizer = MuTransfer(ScheduledSGD(initial_lr=0.1), base_fan_in)
    ones = jax.tree.map(lambda x: jnp.ones(x.shape), shapes_of(MLP(width=width)))
    tx = optimizer.as_optax(optimizer.init_theta(key), 10)
    updates, _ = tx.update(ones, tx.init(ones))
    return {
        k: {n: x.ravel()[0] for n, x in v.items()} for k, v in updates["params"].items()
    }


def test_twice_the_width_halves_hidden_updates_and_no_others(key):
    wide, narrow = updates_of(32, key), updates_of(16, key)
    for layer, tensors in wide.items():
        for name, step in tensors.items():
            is_hidden = (layer, name) == ("Dense_1", "kernel")
            ratio = 0.5 if is_hidden else 1.0
            np.testing.assert_allclose(step, ratio * narrow[layer][name], rtol=1e-6)
    np.testing.assert_allclose(wide["Dense_1"]["kernel"], -0.1 / 32, rtol=1e-6)


def test_at_its_base_width_it_changes_nothing(key):
    plain = jax.tree.map(lambda _: -0.1, updates_of(32, key))
    chex.assert_trees_all_close(updates_of(32, key, base_fan_in=32), plain, rtol=1e-6)


def test_theta_and_state_are_those_of_the_optimizer_inside(key):
    optimizer = MuTransfer()
    assert hash(optimizer) == hash(MuTransfer(PerParameterMLP()))
    theta = optimizer.init_theta(key)
    chex.assert_trees_all_equal(theta, PerParameterMLP().init_theta(key))
    params = jax.tree.map(lambda x: jnp.ones(x.shape), shapes_of(MLP(width=8)))
    states = [o.as_optax(theta, 5).init(params) for o in (optimizer, PerParameterMLP())]
    chex.assert_trees_all_equal(*states)


def test_any_pytree_dtype_and_keyword_is_accepted(key):
    optimizer = MuTransfer(ScheduledSGD())
    tx = optimizer.as_optax(optimizer.init_theta(key), 10)
    params = {
        "first": jnp.ones((3, 8), jnp.bfloat16),
        "hidden": jnp.ones((8, 8), jnp.bfloat16),
        "last": jnp.ones((8, 2), jnp.float16),
        "scalar": jnp.ones(()),
        "empty": jnp.ones((0, 0)),
        "none": None,
    }
    # The last layer has no gradient but still determines which layers are hidden.
    grads = params | {"last": None}
    updates, _ = tx.update(grads, tx.init(params), params, value=1.0, unknown=2)
    chex.assert_trees_all_equal_shapes_and_dtypes(updates, grads)
    first, hidden = (float(updates[name].ravel()[0]) for name in ("first", "hidden"))
    assert hidden == pytest.approx(first / 8, rel=1e-2)
    assert tx.update({}, tx.init({}))[0] == {}
    alone, _ = tx.update(jnp.ones(()), tx.init(jnp.ones(())))
    assert alone.shape == ()


def test_it_survives_a_file(key, tmp_path, monkeypatch):
    monkeypatch.setitem(OPTIMIZERS, "MuTransfer", MuTransfer)
    optimizer = MuTransfer(PerParameterMLP(width=4), base_fan_in=8)
    theta = optimizer.init_theta(key)
    path = tmp_path / "optimizer.safetensors"
    lopt.save(path, optimizer, theta)
    loaded, loaded_theta = lopt.load_theta(path)
    assert loaded == optimizer
    chex.assert_trees_all_equal(loaded_theta, theta)
    params = jax.tree.map(lambda x: jnp.ones(x.shape), shapes_of(MLP(width=16)))
    step = lambda tx: jax.jit(lambda: tx.update(params, tx.init(params), params)[0])()
    updates = [step(optimizer.as_optax(theta, 5)), step(lopt.load(path, 5))]
    chex.assert_trees_all_equal(*updates)


def test_a_base_below_one_is_refused():
    with pytest.raises(lopt.UserError, match="`base_fan_in` must be at least 1; got 0"):
        MuTransfer(base_fan_in=0)
