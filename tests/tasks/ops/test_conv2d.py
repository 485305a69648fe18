"""Patch-based convolutions and their gradients equal those of JAX."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tasks.ops.conv2d import conv2d


@pytest.mark.parametrize("size", [7, 8])
@pytest.mark.parametrize(("kernel", "stride"), [(3, 1), (3, 2), (1, 2)])
def test_result_equals_jax(kernel, stride, size, key):
    inputs = jax.random.normal(key, (2, 3, size, size, 4))
    kernels = jax.random.normal(jax.random.fold_in(key, 1), (2, kernel, kernel, 4, 5))
    numbers = jax.lax.conv_dimension_numbers(
        inputs.shape[1:], kernels.shape[1:], ("NHWC", "HWIO", "NHWC")
    )

    def results(function):
        def loss(inputs, kernel):
            found = function(
                inputs, kernel, (stride, stride), "SAME", dimension_numbers=numbers
            )
            return jnp.sum(found**2), found

        grads = jax.grad(loss, argnums=(0, 1), has_aux=True)
        return jax.vmap(grads)(inputs, kernels)

    expected = results(jax.lax.conv_general_dilated)
    jax.tree.map(
        lambda x, y: np.testing.assert_allclose(x, y, rtol=2e-4, atol=2e-4),
        results(conv2d),
        expected,
    )
