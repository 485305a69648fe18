"""The MLP that optimizers apply to every parameter: one function, two forms."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lopt.pointwise import pointwise_mlp

NUM_ROWS, NUM_COLUMNS, NUM_BATCH = 3, 5, 4


def make(key, *batch):
    """Returns rows and layers, narrow enough to be written out."""
    draw = lambda i, *shape: jax.random.normal(jax.random.fold_in(key, i), shape)
    rows = [draw(i, *batch, NUM_COLUMNS) for i in range(NUM_ROWS)]
    sizes = [(NUM_ROWS, 4), (4, 4), (4, 2)]
    return rows, [
        (draw(10 + i, *batch, *size), draw(20 + i, *batch, size[1]))
        for i, size in enumerate(sizes)
    ]


def plain(rows, layers):
    x = jnp.stack(rows)
    for i, (kernel, bias) in enumerate(layers):
        x = kernel.T @ (jax.nn.relu(x) if i else x) + bias[:, None]
    return list(x)


def assert_same(ours, theirs):
    assert jax.tree.structure(ours) == jax.tree.structure(theirs)
    for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("compiled", [False, True])
def test_narrow_layers_are_layers(compiled, key):
    function = jax.jit(pointwise_mlp) if compiled else pointwise_mlp
    assert_same(function(*make(key)), plain(*make(key)))


@pytest.mark.parametrize("axes", [(0, 0), (0, None), (None, 0)])
def test_they_can_be_batched_over_rows_and_over_weights(axes, key):
    arguments = [
        make(key, *([NUM_BATCH] if axis == 0 else []))[i] for i, axis in enumerate(axes)
    ]
    ours, theirs = (jax.vmap(f, axes) for f in (pointwise_mlp, plain))
    assert_same(jax.jit(ours)(*arguments), theirs(*arguments))
    twice = [jax.tree.map(lambda x: jnp.stack([x, 2 * x]), a) for a in arguments]
    assert_same(jax.jit(jax.vmap(ours))(*twice), jax.vmap(theirs)(*twice))


def test_they_have_derivatives_of_every_order(key):
    arguments = make(key)
    loss = lambda f: lambda *a: sum(jnp.sum(jnp.sin(row)) for row in f(*a))
    ours, theirs = (jax.grad(loss(f), argnums=(0, 1)) for f in (pointwise_mlp, plain))
    assert_same(jax.jit(ours)(*arguments), theirs(*arguments))
    tangents = make(jax.random.fold_in(key, 1))
    ours, theirs = (jax.jvp(g, arguments, tangents) for g in (ours, theirs))
    assert_same(ours, theirs)


def test_they_are_one_operation_until_they_are_compiled(key):
    narrow = jax.make_jaxpr(pointwise_mlp)(*make(key))
    assert len(narrow.eqns) == 1
    lowered = jax.jit(pointwise_mlp).lower(*make(key))
    assert "dot_general" not in lowered.as_text()
    elsewhere = (
        jax.jit(pointwise_mlp).trace(*make(key)).lower(lowering_platforms=("tpu",))
    )
    assert "dot_general" in elsewhere.as_text()
