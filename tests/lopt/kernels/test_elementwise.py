"""Elementwise functions: one definition, several lowerings."""

import functools
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lopt.kernels import cpu, native, primitive
from lopt.kernels.elementwise import elementwise, mean_squares
from lopt.kernels.layers import (
    apply_matmul,
    apply_unrolled,
    apply_with_unrolled_output,
)

SHAPE, NUM_BATCH = (5, 9), 4


def function(apply, arrays, weights):
    first, second = apply([*arrays, arrays[0] * arrays[1]], weights)
    return first * jnp.exp(0.1 * second)


def make(key, *batch, width=4):
    """Draw arrays, some of them constant along rows or columns, and layers."""
    draw = lambda i, *shape: jax.random.normal(jax.random.fold_in(key, i), shape)
    shapes = [SHAPE, (1, SHAPE[1]), (SHAPE[0], 1), SHAPE]
    arrays = [draw(i, *batch, *shape) for i, shape in enumerate(shapes)]
    sizes = [(width, 5), (width, width), (2, width)]
    return arrays, [
        (draw(10 + i, *batch, *size) / size[1] ** 0.5, draw(20 + i, *batch, size[0]))
        for i, size in enumerate(sizes)
    ]


def plain(arrays, layers):
    whole = [jnp.broadcast_to(x, SHAPE).reshape(-1) for x in arrays]
    x = jnp.stack([*whole, whole[0] * whole[1]])
    for i, (kernel, bias) in enumerate(layers):
        x = kernel @ (jax.nn.relu(x) if i else x) + bias[:, None]
    return (x[0] * jnp.exp(0.1 * x[1])).reshape(SHAPE)


ours = functools.partial(elementwise, function)


def assert_same(a, b):
    assert jax.tree.structure(a) == jax.tree.structure(b)
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-5)


KINDS = ["narrow", "narrow, small", "wide", "narrow, many", "wide, many"]
NATIVE = ["wide, native", "narrow, many, native"]


@pytest.fixture(params=KINDS + NATIVE, autouse=True)
def width(request, monkeypatch):
    """Width of the layers, with each lowering forced in turn.

    Narrow layers are written out; wide layers loop over blocks of 7 parameters.
    Narrow layers on small tensors are matrix products.
    With many parameters, both loop over blocks that are shared among all cores.
    Native code replaces blocks if it is available.
    """
    kind, *others = request.param.split(", ")
    monkeypatch.setattr(cpu, "_SMALL_BLOCK", 7)
    if "small" not in others:
        monkeypatch.setattr(cpu, "_MIN_UNROLLED_SIZE", 1)
    if "many" in others:
        monkeypatch.setattr(cpu, "_LARGE_BLOCK", 7)
        monkeypatch.setattr(cpu, "_LARGE_TENSOR", 1)
    if "native" not in others:
        monkeypatch.setattr(native, "is_available", lambda: False)
    elif not native.build():
        pytest.skip("NO COMPILER: native code needs one")
    # Programs compiled for another kind must not be found in JAX's caches.
    primitive._call_compiled.clear_cache()
    ours = functools.partial(elementwise, function)
    monkeypatch.setattr(sys.modules[__name__], "ours", ours)
    return {"narrow": 4, "wide": 17}[kind]


@pytest.mark.parametrize("compiled", [False, True])
def test_it_is_its_definition(compiled, width, key):
    call = jax.jit(ours) if compiled else ours
    assert_same(call(*make(key, width=width)), plain(*make(key, width=width)))


@pytest.mark.parametrize(
    "features",
    [lambda a: [a[0], a[0] * a[1] * a[2]], lambda a: [a[3], a[1], a[2]]],
    ids=["computed", "known"],
)
def test_mean_squares_are_those_of_whole_tensors(features, width, key):
    arrays, _ = make(key)
    found = jax.jit(lambda arrays: mean_squares(features, arrays))(arrays)
    assert_same(found, jnp.stack([jnp.mean(jnp.square(x)) for x in features(arrays)]))


@pytest.mark.parametrize(
    "apply",
    [
        apply_matmul,
        apply_with_unrolled_output,
        functools.partial(apply_with_unrolled_output, sum_first_layer=True),
        apply_unrolled,
    ],
)
def test_layers_are_the_same_however_they_are_applied(apply, width, key):
    arrays, layers = make(key, width=width)
    assert_same(function(apply, arrays, layers), plain(arrays, layers))


@pytest.mark.parametrize("axes", [(0, 0), (0, None), (None, 0)])
def test_it_can_be_batched_over_arrays_and_over_weights(axes, width, key):
    arguments = [
        make(key, *([NUM_BATCH] if axis == 0 else []), width=width)[i]
        for i, axis in enumerate(axes)
    ]
    batched, expected = (jax.vmap(f, axes) for f in (ours, plain))
    assert_same(jax.jit(batched)(*arguments), expected(*arguments))
    twice = [jax.tree.map(lambda x: jnp.stack([x, 2 * x]), a) for a in arguments]
    assert_same(jax.jit(jax.vmap(batched))(*twice), jax.vmap(expected)(*twice))


def test_it_has_derivatives_of_every_order(width, key):
    if cpu._LARGE_TENSOR == 1 or native.is_available():
        pytest.skip("derivatives take the plain path, however values are computed")
    arguments = make(key, width=width)
    loss = lambda f: lambda *a: jnp.sum(jnp.sin(f(*a)))
    grad, expected = (jax.grad(loss(f), argnums=(0, 1)) for f in (ours, plain))
    assert_same(jax.jit(grad)(*arguments), expected(*arguments))
    tangents = make(jax.random.fold_in(key, 1), width=width)
    twice, expected = (jax.jvp(g, arguments, tangents) for g in (grad, expected))
    assert_same(twice, expected)


def test_lowering_is_selected_at_compile_time(width, key):
    arguments = make(key, width=width)
    assert len(jax.make_jaxpr(ours)(*arguments).eqns) == 1
    text = jax.jit(ours).lower(*arguments).as_text()
    is_heavy, is_native = width > 4 or cpu._LARGE_TENSOR == 1, native.is_available()
    assert ("lopt_elementwise" in text) == (is_heavy and is_native)
    assert ("while" in text) == (is_heavy and not is_native)
    is_product = width > 4 or cpu._MIN_UNROLLED_SIZE > 1
    assert ("dot_general" in text) == (is_product and not is_native)
    for name, has_kernel in {"tpu": True, "cuda": False}.items():
        lowered = jax.jit(ours).trace(*arguments).lower(lowering_platforms=(name,))
        assert ("custom_call" in lowered.as_text()) == has_kernel


def test_many_members_with_narrow_layers_are_written_out(width, key):
    if width > 4 or cpu._LARGE_TENSOR == 1:
        pytest.skip("of narrow layers on few parameters")
    many = jax.tree.map(lambda x: jnp.stack([x] * 100), make(key, width=width))
    text = jax.jit(jax.vmap(ours)).lower(*many).as_text()
    assert "lopt_elementwise" not in text
    assert "while" not in text


def test_the_population_may_be_empty(width, key):
    arrays, layers = make(key, width=width)
    none = [jnp.zeros((0, *x.shape)) for x in arrays]
    found = jax.jit(jax.vmap(ours, (0, None)))(none, layers)
    assert_same(found, jax.vmap(plain, (0, None))(none, layers))


def test_debug_nans_finds_the_origin(width, key):
    (first, *arrays), layers = make(key, width=width)
    with jax.debug_nans(True):
        ours([first, *arrays], layers)
        with pytest.raises(FloatingPointError, match="invalid value"):
            ours([first.at[0].set(jnp.nan), *arrays], layers)


def test_exports_run_without_native_code(width, key):
    arguments = make(key, width=width)
    exported = jax.export.export(jax.jit(ours))(*arguments)
    assert "lopt_elementwise" not in exported.mlir_module()
    abroad = jax.export.export(jax.jit(ours), platforms=["cuda"])(*arguments)
    assert "custom_call" not in abroad.mlir_module()
    assert_same(exported.call(*arguments), plain(*arguments))


def test_results_vary_with_any_varying_input(width, key):
    automatic = (jax.sharding.AxisType.Auto,)
    mesh = jax.make_mesh((1,), ("x",), automatic, devices=jax.devices()[:1])
    (first, *arrays), layers = make(key, width=width)
    on_mesh = lambda f, spec: jax.shard_map(
        lambda own: f([first, *arrays[:-1], own]),
        mesh=mesh,
        in_specs=jax.P("x"),
        out_specs=spec,
    )(arrays[-1])
    for f in (
        lambda arrays: ours(arrays, layers),
        lambda arrays: mean_squares(lambda a: [a[0] * a[3]], arrays),
    ):
        with pytest.raises(ValueError, match="out_specs"):
            on_mesh(f, jax.P())
        assert_same(on_mesh(f, jax.P("x")), f([first, *arrays]))
