"""Compatibility checks of gradient estimators with a system, by abstract tracing."""

import math
import os
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Literal

from lopt.errors import UserError
from lopt.files.dataclass_json import convert
from meta_train.estimators import PES, UORO, GradientEstimator
from meta_train.estimators.base import Derivatives
from tasks.base import Data, Theta, UnrolledSystem


class Compatibility:
    """Compatibility of gradient estimators with one system.

    All checks trace abstract values: nothing is compiled or unrolled. The result for
    each kind of derivative is cached.
    """

    def __init__(self, system: UnrolledSystem, data: Data, theta: Theta):
        self._system = system
        self._arguments = (data, theta, jax.random.key(0))
        self._reasons: dict[Derivatives, str | None] = {"none": None}

    def check(self, estimator: GradientEstimator) -> None:
        """Validate that `estimator` supports the system and fits into memory.

        Raises:
            UserError: If the system lacks the derivatives that `estimator` needs, or
                if two copies of the estimator's state exceed `memory_limit`.
        """
        reason = self.reason_against(estimator.derivatives)
        name, system = _name(estimator), _name(self._system)
        if reason is not None:
            raise UserError(
                f"{name} differentiates the unroll, which {system} must support; "
                f"{reason.rstrip('.')}. {self._suggestion(estimator)}"
            )
        size, limit = self.carried_bytes(estimator), memory_limit()
        # The states before and after an update exist at the same time.
        if 2 * size > limit:
            each = size / estimator.population_size
            raise UserError(
                f"{name} on {system} carries {_bytes(size)} from update to update "
                f"({estimator.population_size} times {_bytes(each)}), and two of that "
                f"must fit into {_bytes(limit)}. {self._suggestion(estimator)}"
            )

    def carried_bytes(self, estimator: GradientEstimator) -> int:
        """Compute the size of the estimator's state in bytes from its shapes."""

        def init(*arguments):
            return estimator.init(self._system, *arguments)

        leaves = jax.tree.leaves(jax.eval_shape(init, *self._arguments))
        return sum(math.prod(x.shape) * x.dtype.itemsize for x in leaves)

    def reason_against(self, derivatives: Derivatives) -> str | None:
        """Explain why the system lacks `derivatives`, or return `None` if it has them.

        A derivative that is identically zero counts as missing.
        """
        if derivatives not in self._reasons:
            self._reasons[derivatives] = self._find_reason(derivatives)
        return self._reasons[derivatives]

    def _find_reason(self, derivatives: Derivatives) -> str | None:
        system, first = self._system, self._arguments
        # Trace the system without derivatives first, so that its own errors propagate
        # unchanged.
        jax.eval_shape(lambda *first: _first_step(system, *first), *first)
        try:
            reason = _reason_for_zero(system, *first)
            if reason is None and derivatives == "reverse":
                jax.eval_shape(lambda *first: _pull_back(system, *first), *first)
            return reason
        except (ValueError, TypeError, NotImplementedError) as error:
            return f"JAX reports: {str(error).splitlines()[0]}"

    def _suggestion(self, estimator: GradientEstimator) -> str:
        tries = []
        for kind in (UORO, PES):
            other = convert(estimator, kind)
            size = self.carried_bytes(other)
            works = self.reason_against(other.derivatives) is None
            if kind is not type(estimator) and works and 2 * size < memory_limit():
                tries.append(
                    f"--estimator {_name(other)}, which carries {_bytes(size)}"
                )
        if not tries:
            return "Try a smaller population."
        return f"Try {' or '.join(tries)}."


def memory_limit() -> int:
    """Compute the total device memory in bytes, or the physical memory on CPU."""
    stats = jax.local_devices()[0].memory_stats()
    if stats and "bytes_limit" in stats:
        return stats["bytes_limit"] * jax.device_count()
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _first_step(system: UnrolledSystem, data: Data, theta: Theta, key: Any) -> Any:
    state = system.init_state(theta, data, 1, key)
    return system.step(theta, state, system.sample_input(data, state, key))


def _pull_back(system: UnrolledSystem, data: Data, theta: Theta, key: Any) -> Any:
    return jax.grad(lambda theta: _first_step(system, data, theta, key)[1])(theta)


def _reason_for_zero(
    system: UnrolledSystem, data: Data, theta: Theta, key: Any
) -> str | None:
    """Explain why the loss has derivative zero in `theta`, or return `None`.

    The JVP of `init_state` and of one step is traced to a jaxpr. Its inputs include the
    tangents of `theta` and of the floating-point leaves of the state. A fixed-point
    iteration over steps then finds the state tangents that depend on the tangent of
    `theta`. If the tangent of the loss never does, the loss is piecewise constant.
    """

    def floats(state):
        def is_float(x):
            return jnp.issubdtype(x.dtype, jnp.floating)

        return [x for x in jax.tree.leaves(state) if is_float(x)]

    def push(data, theta, key, d_theta, d_floats):
        def init(theta):
            return system.init_state(theta, data, 1, key)

        _, d_start = jax.jvp(lambda theta: floats(init(theta)), (theta,), (d_theta,))
        state = init(theta)
        x = system.sample_input(data, state, key)

        def step(theta, values):
            values = iter(values)
            leaves, treedef = jax.tree.flatten(state)

            def put(x):
                return next(values) if floats(x) else x

            whole = jax.tree.unflatten(treedef, [put(leaf) for leaf in leaves])
            following, loss = system.step(theta, whole, x)
            return floats(following), loss

        _, d_step = jax.jvp(step, (theta, floats(state)), (d_theta, d_floats))
        return d_start, d_step

    state, _ = jax.eval_shape(lambda *a: _first_step(system, *a), data, theta, key)
    tangents = (theta, floats(state))
    jaxpr = jax.make_jaxpr(push)(data, theta, key, *tangents).jaxpr
    num_theta, num_floats = (len(jax.tree.leaves(t)) for t in tangents)
    d_theta, d_floats = np.split(jaxpr.invars[-num_theta - num_floats :], [num_theta])
    d_start, d_state, d_loss = np.split(jaxpr.outvars, [num_floats, 2 * num_floats])
    # Tangents that depend on theta: after `init_state`, after the first step, after
    # the second step, and so on until no tangent is added.
    moved = set(d_theta)
    outs = d_start
    while True:
        reached = _reached(jaxpr, moved)
        if d_loss[0] in reached:
            return None
        more = {i for i, o in zip(d_floats, outs, strict=True) if o in reached}
        if outs is d_state and more <= moved:
            return "its loss is piecewise constant in theta, with derivative zero"
        moved |= more
        outs = d_state


def _reached(jaxpr: Any, inputs: set[Any]) -> list[Any]:
    """Find the variables of `jaxpr` that depend on `inputs`.

    Tangents that are symbolic zeros are constants and depend on no input.
    """
    reached = set(inputs)
    for equation in jaxpr.eqns:
        operands = {v for v in equation.invars if not isinstance(v, Literal)}
        if reached & operands:
            reached.update(equation.outvars)
    # Callers look up literals as well, which are not hashable: return a list.
    return list(reached)


def _name(part: Any) -> str:
    return type(part).__name__


def _bytes(size: float) -> str:
    for unit in ("bytes", "kB", "MB", "GB", "TB"):
        if size < 1000 or unit == "TB":
            return f"{size:.3g} {unit}"
        size /= 1000
    raise AssertionError
