"""Native code equals XLA and falls back to it for unsupported functions."""

import ctypes
import itertools
import subprocess
import sys
import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lopt.kernels import cpu, native, primitive
from lopt.kernels.elementwise import elementwise, mean_squares
from lopt.kernels.layers import apply_matmul
from lopt.kernels.native.program import OPERATIONS, compile_function
from lopt.optimizers.per_parameter_mlp import PerParameterMLP
from tests.conftest import command_environment

on_linux = pytest.mark.skipif(sys.platform != "linux", reason="for Linux only")
needs_compiler = pytest.mark.skipif(
    not native.build(), reason="NO COMPILER: native code needs one"
)
SPECIAL = [0.0, -0.0, 1.0, -1.5, 1e-30, -3e38, 88.0, -80.0, np.inf, -np.inf, np.nan]


@pytest.fixture(autouse=True)
def always(monkeypatch):
    """Use native code for tensors of any size."""
    monkeypatch.setattr(cpu, "_LARGE_TENSOR", 1)
    primitive._call_compiled.clear_cache()


def network(apply, arrays, weights):
    layers, scale = weights
    first, *rest = apply(list(arrays), layers)
    return scale * first * jnp.exp(0.1 * sum(rest))


def make(key, *sizes):
    draw = lambda i, *shape: jax.random.normal(jax.random.fold_in(key, i), shape)
    layers = [
        (draw(i, outputs, inputs) / inputs**0.5, draw(50 + i, outputs))
        for i, (inputs, outputs) in enumerate(itertools.pairwise(sizes))
    ]
    return layers, jnp.float32(0.3)


def run_native(function, arrays, weights):
    """Compile a call, check that it uses native code, and run it."""
    call = jax.jit(lambda arrays, weights: elementwise(function, arrays, weights))
    assert "lopt_elementwise" in call.lower(arrays, weights).as_text()
    return call(arrays, weights)


@needs_compiler
@pytest.mark.parametrize("size", [1, 7, 23, 24, 25, 96, 100, 4_095, 4_097, 50_001])
def test_tensors_of_any_size(size, key):
    arrays = list(jax.random.normal(key, (3, size)))
    weights = make(key, 3, 33, 32, 2)
    found = run_native(network, arrays, weights)
    expected = network(apply_matmul, arrays, weights)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-6)


@needs_compiler
@pytest.mark.parametrize("sizes", [(4, 2), (4, 1, 1), (4, 9, 3), (4, 70, 5, 70, 6)])
def test_networks_of_any_shape(sizes, key):
    shape = (2, 3, 31, 5)
    parts = [shape, (1, 3, 31, 1), (2, 1, 1, 5), (1, 1, 1, 1)]
    arrays = [
        jax.random.normal(jax.random.fold_in(key, i), s) for i, s in enumerate(parts)
    ]
    weights = make(key, *sizes)
    found = run_native(network, arrays, weights)
    expected = network(apply_matmul, arrays, weights)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-6)


OPERATORS = {
    "add": jnp.add,
    "sub": jnp.subtract,
    "mul": jnp.multiply,
    "div": jnp.divide,
    "max": jnp.maximum,
    "min": jnp.minimum,
    "neg": lambda x, _: -x,
    "abs": lambda x, _: jnp.abs(x),
    "sqrt": lambda x, _: jnp.sqrt(x),
    "rsqrt": lambda x, _: jax.lax.rsqrt(x),
    "exp": lambda x, _: jnp.exp(x),
    "square": lambda x, _: x**2,
    "clip": lambda x, _: jnp.clip(x, -0.5, 0.5),
    "relu": lambda x, _: jax.nn.relu(x),
}


@needs_compiler
@pytest.mark.parametrize("name", OPERATORS)
def test_operations_on_all_kinds_of_numbers(name, key):
    operator = OPERATORS[name]
    special = jnp.asarray(SPECIAL, jnp.float32)
    x = jnp.concatenate(
        [jnp.repeat(special, len(SPECIAL)), jax.random.normal(key, (99,))]
    )
    y = jnp.concatenate(
        [jnp.tile(special, len(SPECIAL)), jax.random.normal(key, (99,))]
    )
    found = run_native(lambda apply, arrays, _: operator(*arrays), [x, y], ())
    np.testing.assert_allclose(found, operator(x, y), rtol=1e-6, atol=1e-38)


def test_every_operation_is_tried():
    assert set(OPERATIONS) <= {"layers", *OPERATORS}


@needs_compiler
def test_nan_propagates_through_layers(key):
    arrays = list(jax.random.normal(key, (3, 30)).at[:, 4].set(jnp.nan))
    found = run_native(network, arrays, make(key, 3, 8, 2))
    np.testing.assert_array_equal(jnp.isnan(found), jnp.arange(30) == 4)


@needs_compiler
def test_means_of_large_tensors_are_exact(key):
    x = 1_000 + jax.random.normal(key, (1_500, 1_001))
    features = lambda arrays: [arrays[0] * arrays[1], arrays[0]]
    scale = jnp.linspace(0.5, 2.0, 1_001)[None, :]
    call = jax.jit(lambda arrays: mean_squares(features, arrays))
    assert "lopt_elementwise" in call.lower([x, scale]).as_text()
    exact = [np.asarray(x, np.float64) * np.asarray(scale, np.float64), np.float64(x)]
    expected = [np.mean(y**2) for y in exact]
    np.testing.assert_allclose(call([x, scale]), expected, rtol=2e-7)


@needs_compiler
def test_results_do_not_depend_on_the_position(key):
    """Results do not depend on threads, blocks or neighboring elements."""
    arrays, weights = list(jax.random.normal(key, (3, 60_000))), make(key, 3, 32, 2)
    whole = run_native(network, arrays, weights)
    for begin, end in [(0, 60_000), (1, 30), (4_090, 4_200), (59_990, 60_000)]:
        part = run_native(network, [x[begin:end] for x in arrays], weights)
        np.testing.assert_array_equal(part, whole[begin:end])


@needs_compiler
def test_calls_at_once_do_not_disturb_each_other(key):
    arrays, weights = list(jax.random.normal(key, (3, 30_000))), make(key, 3, 32, 2)
    call = jax.jit(lambda arrays: elementwise(network, arrays, weights))
    expected, found = call(arrays), []

    def work():
        found.append(all((call(arrays) == expected).all() for _ in range(100)))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [True] * 4


def test_native_code_falls_back_to_xla(key):
    arrays = [jax.random.normal(key, (40, 3))]
    for function in [
        lambda apply, arrays, _: jnp.sin(arrays[0]),
        lambda apply, arrays, _: arrays[0] ** 3,
        lambda apply, arrays, _: jnp.where(arrays[0] > 0, 1.0, arrays[0]),
        lambda apply, arrays, _: arrays[0].astype(jnp.bfloat16).astype(jnp.float32),
        lambda apply, arrays, _: jax.lax.fori_loop(
            0, 5, lambda _, x: 2.0 * x, arrays[0]
        ),
    ]:
        treedef = jax.tree.structure(())
        program = compile_function(
            function, 1, treedef=treedef, shapes=(), is_reduction=False
        )
        assert program is None
        np.testing.assert_allclose(
            elementwise(function, arrays, ()), function(None, arrays, ()), rtol=1e-6
        )


def test_other_types_are_left_to_xla(key):
    arrays = [jax.random.normal(key, (40, 3), jnp.bfloat16)]
    found = elementwise(lambda apply, arrays, _: 2.0 * arrays[0], arrays, ())
    np.testing.assert_array_equal(found, 2 * arrays[0])
    assert found.dtype == jnp.bfloat16


def test_slots_are_reused():
    def chain(arrays):
        (x,) = arrays
        for _ in range(100):
            x = x * x + 1.0
        return [x]

    treedef = jax.tree.structure(())
    program = compile_function(chain, 1, treedef=treedef, shapes=(), is_reduction=True)
    assert program is not None
    assert len(program.instructions) == 200 * 6
    assert program.num_places <= 5


@pytest.fixture
def compile_anew(monkeypatch, tmp_path):
    """Reset native code as in a new process, with an empty cache folder."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(jax.ffi, "register_ffi_target", lambda *_, **__: None)
    for name in ("is_registered", "has_failed"):
        monkeypatch.setattr(native._State, name, False)
    return tmp_path / "lopt" / "native"


def test_it_can_be_turned_off(compile_anew, monkeypatch):
    monkeypatch.setenv("LOPT_NATIVE", "0")
    assert not native.build()
    assert not compile_anew.exists()


def test_without_a_compiler_xla_is_used_silently(compile_anew, monkeypatch):
    monkeypatch.setenv("PATH", str(compile_anew))
    assert not native.build()


@on_linux
def test_a_compiler_that_fails_is_named_with_its_reason(
    compile_anew, monkeypatch, tmp_path
):
    broken = tmp_path / "broken"
    broken.write_text("#!/bin/sh\necho 'no room on the moon' >&2\nexit 1\n")
    broken.chmod(0o755)
    monkeypatch.setenv("CXX", str(broken))
    with pytest.warns(UserWarning, match="broken` into .*: no room on the moon"):
        assert not native.build()
    assert not native.build()  # a second warning would be an error


@on_linux
def test_a_compiler_may_come_with_arguments(compile_anew, monkeypatch):
    monkeypatch.setenv("CXX", "sh -c 'echo $0 >&2; exit 1' quoted")
    with pytest.warns(UserWarning, match="Failed to compile .*: quoted\n"):
        assert not native.build()


@on_linux
def test_a_compiler_that_was_asked_for_must_be_there(compile_anew, monkeypatch):
    monkeypatch.setenv("CXX", "nowhere -O2")
    with pytest.warns(UserWarning, match="`nowhere -O2` into .*No such file"):
        assert not native.build()


@needs_compiler
def test_a_cache_that_cannot_be_written_is_named(compile_anew, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", "/dev/null")
    with pytest.warns(UserWarning, match=r"into /dev/null/lopt/native: .*/dev/null"):
        assert not native.build()


@needs_compiler
def test_only_build_compiles(compile_anew, key):
    arrays = list(jax.random.normal(key, (3, 100)))
    weights = make(key, 3, 4, 2)
    call = jax.jit(lambda arrays, weights: elementwise(network, arrays, weights))
    assert not native.is_available()
    assert "lopt_elementwise" not in call.lower(arrays, weights).as_text()
    assert not compile_anew.exists()
    assert not native.is_built()
    assert native.build()
    assert native.is_built()
    assert native.is_available()
    native.enable(False)
    assert not native.is_available()
    native.enable(True)


@needs_compiler
def test_a_damaged_library_is_compiled_again(compile_anew):
    library = native._path()
    library.parent.mkdir(parents=True)
    library.write_bytes(b"no library")
    assert not native.is_available()
    assert native.build()
    assert ctypes.CDLL(str(library))


@needs_compiler
def test_processes_that_compile_at_once_all_succeed(compile_anew):
    code = "from lopt.kernels import native; raise SystemExit(not native.build())"
    environment = command_environment(XDG_CACHE_HOME=str(compile_anew.parent.parent))
    processes = [
        subprocess.Popen([sys.executable, "-c", code], env=environment)
        for _ in range(3)
    ]
    assert [process.wait(timeout=120) for process in processes] == [0] * 3
    assert [path.suffix for path in compile_anew.iterdir()] == [".so"]


@needs_compiler
def test_learned_optimizers_use_it(key):
    optimizer = PerParameterMLP()
    transformation = optimizer.as_optax(optimizer.init_theta(key), 10)
    params = {"w": jnp.ones((30, 20))}
    state = transformation.init(params)
    text = jax.jit(transformation.update).lower(params, state, params).as_text()
    assert "lopt_elementwise" in text
