"""The TPU kernel equals the plain lowering."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lopt.kernels.primitive import elementwise_p, lower_plain
from lopt.kernels.tpu import call_kernel
from lopt.optimizers.adafactor_mlp import AdafactorMLP
from lopt.optimizers.normalized_mlp import NormalizedMLP
from lopt.optimizers.per_parameter_mlp import PerParameterMLP
from meta_train.analysis.resource_plan import tpu_devices

OPTIMIZERS = [PerParameterMLP(width=4), AdafactorMLP(), NormalizedMLP(width=4)]
EVERY = pytest.mark.parametrize(
    "optimizer",
    [PerParameterMLP(), AdafactorMLP(), NormalizedMLP(orthogonalize=True)],
    ids=lambda o: type(o).__name__,
)
SHAPES = [(20, 1030), (1_500,), (2, 3, 9, 40)]


def grads_and_params(key, shape):
    return [jax.random.normal(k, shape) for k in jax.random.split(key)]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=lambda o: type(o).__name__)
def test_the_kernel_equals_the_plain_path(optimizer, shape, key, monkeypatch):
    transformation = optimizer.as_optax(optimizer.init_theta(key), 10)
    grads, params = grads_and_params(key, shape)
    _, state = transformation.update(grads, transformation.init(params), params)
    expected, _ = transformation.update(grads, state, params)
    kernels = []

    def bind(*operands, **parameters):
        if parameters["is_reduction"]:
            return lower_plain(*operands, **parameters)
        kernels.append(parameters["function"])
        return call_kernel(*operands, interpret=True, **parameters)

    monkeypatch.setattr(elementwise_p, "bind", bind)
    found, _ = transformation.update(grads, state, params)
    is_vector_of_adam = len(shape) == 1 and isinstance(optimizer, NormalizedMLP)
    assert len(kernels) == (0 if is_vector_of_adam else 1)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-8)


def lowered(optimizer, shapes, key, *, sharding=None, platform=None):
    """Lower the update of a pytree for a device that need not be attached."""
    like = lambda x: jax.ShapeDtypeStruct(
        jnp.shape(x), jnp.result_type(x), sharding=sharding
    )
    params = {name: jnp.ones(shape) for name, shape in shapes.items()}
    transformation = optimizer.as_optax(optimizer.init_theta(key), 100)
    arguments = jax.tree.map(like, (params, transformation.init(params), params))
    update = functools.partial(transformation.update, value=None)
    platforms = platform and (platform,)
    return jax.jit(update).trace(*arguments).lower(lowering_platforms=platforms)


def num_kernels(optimizer):
    """Number of kernels for `TREE`; `NormalizedMLP` updates vectors with Adam."""
    return 2 if isinstance(optimizer, NormalizedMLP) else 3


TREE = {"w": (1_000, 520), "b": (130,), "conv": (3, 3, 40, 64)}


@EVERY
def test_every_tensor_has_a_kernel_on_a_tpu(optimizer, key):
    text = lowered(optimizer, TREE, key, platform="tpu").as_text()
    assert text.count("stablehlo.custom_call @tpu_custom_call") == num_kernels(
        optimizer
    )


def test_gpus_take_the_plain_path(key):
    text = lowered(AdafactorMLP(), {"w": (60, 70)}, key, platform="cuda").as_text()
    assert "custom_call" not in text
    assert "dot_general" in text


@pytest.mark.parametrize("platform", ["tpu", "cuda"])
def test_empty_tensors_need_no_kernel(platform, key):
    shapes = {"empty": (0, 3), "vector": (0,)}
    text = lowered(AdafactorMLP(), shapes, key, platform=platform).as_text()
    assert "custom_call" not in text


@pytest.mark.slow
@EVERY
def test_the_kernel_compiles_for_a_tpu(optimizer, key):
    pytest.importorskip("libtpu", reason='NO COMPILER: pip install "lopt[tpu]"')
    one = jax.sharding.SingleDeviceSharding(tpu_devices("v5e:2x2")[0])
    text = str(lowered(optimizer, TREE, key, sharding=one).compile().as_text())
    assert text.count('custom_call_target="tpu_custom_call"') == num_kernels(optimizer)
