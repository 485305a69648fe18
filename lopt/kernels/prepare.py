"""Preparation of native code before a program is compiled."""

import functools
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Literal, TypeAlias

import jax
import jax.numpy as jnp

from lopt.base import LearnedOptimizer
from lopt.errors import UserError
from lopt.kernels import native
from lopt.kernels.cpu import is_heavy
from lopt.kernels.primitive import elementwise_p

Kernels: TypeAlias = Literal["auto", "native", "xla"]


def prepare(
    kernels: Kernels,
    updates: Iterable[tuple[LearnedOptimizer, Any]],
    say: Callable[[str], None],
) -> Literal["native", "xla"]:
    """Compile native code if an update would use it.

    Args:
        kernels: Implementation of elementwise functions. With ``"auto"``, native code
            is used where it is available.
        updates: Learned optimizers, each with parameters or their shapes.
        say: Callback for one line, printed before a compilation of several seconds.

    Returns:
        The implementation that programs of this process will use on CPU: ``"native"``
        if at least one update calls native code.
    """
    native.enable(kernels != "xla")
    is_wanted = (
        kernels != "xla"
        and jax.default_backend() == "cpu"
        and any(_has_heavy_call(*update) for update in updates)
    )
    if not is_wanted:
        return "xla"
    if not native.is_built():
        say("Compiling native kernels, once per machine (about 5 s).")
    if native.build():
        return "native"
    if kernels == "native":
        say("Native kernels are not available here; falling back to XLA.")
    return "xla"


def _has_heavy_call(optimizer: LearnedOptimizer, params: Any) -> bool:
    """Check whether native code pays off for one update of `params`."""
    if not _calls_elementwise(optimizer):
        return False
    return any(
        is_heavy([x.aval for x in call.invars], **call.params)
        for call in _calls_of_update(optimizer, params)
    )


@functools.cache
def _calls_elementwise(optimizer: LearnedOptimizer) -> bool:
    """Check whether updates call elementwise functions at all, on tiny parameters.

    An optimizer that requires another number of tensors may call them.
    """
    shapes = {"b": (2,), "w": (2, 2)}
    params = {k: jax.ShapeDtypeStruct(s, jnp.float32) for k, s in shapes.items()}
    try:
        return any(True for _ in _calls_of_update(optimizer, params))
    except UserError:
        return True


def _calls_of_update(optimizer: LearnedOptimizer, params: Any) -> Iterator[Any]:
    """Trace one update of `params` and iterate over its elementwise calls."""

    def update(theta, params, loss):
        tx = optimizer.as_optax(theta, 1)
        return tx.update(params, tx.init(params), params, value=loss)

    theta = jax.eval_shape(optimizer.init_theta, jax.random.key(0))
    loss = jax.ShapeDtypeStruct((), jnp.float32)
    return _calls(jax.make_jaxpr(update)(theta, params, loss).jaxpr)


def _calls(jaxpr: Any) -> Iterator[Any]:
    """Iterate over the elementwise calls of a jaxpr and of those inside it."""
    for equation in jaxpr.eqns:
        if equation.primitive is elementwise_p:
            yield equation
        for value in equation.params.values():
            inner = getattr(value, "jaxpr", value)
            if hasattr(inner, "eqns"):
                yield from _calls(inner)
