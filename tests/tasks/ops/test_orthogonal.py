"""Random orthogonal matrices."""

import jax
import numpy as np
import pytest

from tasks.base import Family
from tasks.ops.orthogonal import orthogonal
from tasks.zoo import ZOO


@pytest.mark.parametrize("dim", [1, 2, 5, 64])
def test_they_are_orthogonal(dim, key):
    matrix = orthogonal(key, (dim, dim))
    np.testing.assert_allclose(matrix @ matrix.T, np.eye(dim), atol=1e-5)


def test_directions_are_isotropic(key):
    num, dim = 4_000, 3
    draw = jax.vmap(lambda key: orthogonal(key, (dim, dim)))
    found = np.asarray(draw(jax.random.split(key, num)), float)
    # Under the Haar measure, entries have mean 0, second moment 1 / n and fourth moment
    # 3 / (n (n + 2)). Both signs of the determinant are equally likely.
    moments = {1: 0.0, 2: 1 / dim, 4: 3 / (dim * (dim + 2))}
    for power, expected in moments.items():
        values = found**power
        error = values.std(axis=0, ddof=1) / num**0.5
        assert (abs(values.mean(axis=0) - expected) < 4.5 * error).all()
    determinants = np.linalg.det(found)
    assert abs(determinants.mean()) < 4.5 / num**0.5
    # The distribution is invariant to orthogonal maps on either side, so entries of a
    # row are uncorrelated.
    product = found[:, 0, 0] * found[:, 0, 1]
    assert abs(product.mean()) < 4.5 * product.std(ddof=1) / num**0.5


FAMILIES = [name for name, e in ZOO.items() if isinstance(e.problem, Family)]


@pytest.mark.parametrize("name", FAMILIES)
def test_initialization_calls_no_lapack(name, key):
    task = ZOO[name].problem

    def start(key):
        constants = task.sample_constants(key)
        return constants, task.problem(constants).init_params(key)

    text = jax.jit(jax.vmap(start)).lower(jax.random.split(key, 3)).as_text()
    assert "lapack" not in text
