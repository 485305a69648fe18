"""Operation counts against XLA's cost analysis (without loops) and by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from meta_train.analysis.hlo_cost import cost


def compiled(function, *arguments):
    return jax.jit(function).lower(*arguments).compile()


@pytest.mark.parametrize(
    "function",
    [
        lambda x: jnp.tanh(x @ x.T) + 1.0,
        lambda x: jnp.sum(x**2) + jnp.max(x),
        jax.grad(lambda x: jnp.mean(jax.nn.softmax(x @ x.T) ** 2)),
        lambda x: jax.lax.conv(x[None, None], jnp.ones((4, 1, 3, 3)), (1, 1), "SAME"),
    ],
)
def test_without_loops_it_agrees_with_xla(function):
    program = compiled(function, jnp.ones((16, 24)))
    np.testing.assert_allclose(
        cost(program).flops, program.cost_analysis()["flops"], rtol=0.1
    )


@pytest.mark.parametrize("length", [1, 7, 40])
def test_a_loop_counts_as_often_as_it_runs(length):
    def function(x):
        return jax.lax.scan(lambda s, _: (s @ s, None), x, None, length=length)[0]

    flops = cost(compiled(function, jnp.eye(16))).flops
    np.testing.assert_allclose(flops, length * 2 * 16**3, rtol=0.01)


def test_loops_multiply():
    inner = lambda x: jax.lax.fori_loop(0, 5, lambda _, s: s @ s, x)
    outer = lambda x: jax.lax.fori_loop(0, 6, lambda _, s: inner(s) + 1.0, x)
    flops = cost(compiled(outer, jnp.eye(16))).flops
    np.testing.assert_allclose(flops, 6 * (5 * 2 * 16**3 + 16**2), rtol=0.01)


def test_the_dearest_branch_counts():
    function = lambda x, yes: jax.lax.cond(yes, lambda: x @ x @ x, lambda: x @ x)
    flops = cost(compiled(function, jnp.eye(16), True)).flops
    np.testing.assert_allclose(flops, 2 * 2 * 16**3, rtol=0.01)


def test_memory_counts_live_buffers():
    size = 4 * 1000
    program = compiled(lambda x: jnp.sin(x), jnp.ones(1000))
    assert 2 * size <= cost(program).bytes < 2.2 * size
    donated = jax.jit(jnp.sin, donate_argnums=0).lower(jnp.ones(1000)).compile()
    assert size <= cost(donated).bytes < 1.2 * size
