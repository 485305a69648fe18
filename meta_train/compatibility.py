"""Whether an estimator can work on a system: told from shapes, before any work."""

import math
import os
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Literal

from lopt.describe import convert
from lopt.errors import UserError
from meta_train.estimators import PES, UORO, GradientEstimator
from meta_train.estimators.base import Derivatives
from tasks.base import Data, Theta, UnrolledSystem


class Compatibility:
    """Of estimators with one system, its data and its theta."""

    def __init__(self, system: UnrolledSystem, data: Data, theta: Theta):
        self._system = system
        self._arguments = (data, theta, jax.random.key(0))
        self._reasons: dict[Derivatives, str | None] = {"none": None}

    def check(self, estimator: GradientEstimator) -> None:
        """Raises unless `estimator` can work here and what it carries fits here."""
        reason = self.reason_against(estimator.derivatives)
        name, system = _name(estimator), _name(self._system)
        if reason is not None:
            raise UserError(
                f"{name} differentiates what it unrolls, which {system} must allow; "
                f"{reason.rstrip('.')}. {self._suggestion(estimator)}"
            )
        size, limit = self.carried_bytes(estimator), memory_limit()
        if 2 * size > limit:  # one before and one after an update
            each = size / estimator.population_size
            raise UserError(
                f"{name} on {system} carries {_bytes(size)} from update to update "
                f"({estimator.population_size} times {_bytes(each)}), and two of that "
                f"must fit into {_bytes(limit)}. {self._suggestion(estimator)}"
            )

    def carried_bytes(self, estimator: GradientEstimator) -> int:
        """Returns the size of the estimator's state, without making one."""
        init = lambda *arguments: estimator.init(self._system, *arguments)
        leaves = jax.tree.leaves(jax.eval_shape(init, *self._arguments))
        return sum(math.prod(x.shape) * x.dtype.itemsize for x in leaves)

    def reason_against(self, derivatives: Derivatives) -> str | None:
        """Returns why the system has no such derivatives; nothing if it has."""
        if derivatives not in self._reasons:
            self._reasons[derivatives] = self._find_reason(derivatives)
        return self._reasons[derivatives]

    def _find_reason(self, derivatives: Derivatives) -> str | None:
        system, first = self._system, self._arguments
        # Whatever is wrong with the system itself is raised here, as it is.
        jax.eval_shape(lambda *first: _first_step(system, *first), *first)
        try:
            reason = _reason_for_zero(system, *first)
            if reason is None and derivatives == "reverse":
                jax.eval_shape(lambda *first: _pull_back(system, *first), *first)
            return reason
        except (ValueError, TypeError, NotImplementedError) as error:
            return f"jax says: {str(error).splitlines()[0]}"

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
    """Returns the bytes that all devices have; a CPU has the machine's."""
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
    """Returns why the loss's derivative is zero wherever it exists, if it is."""

    def floats(state):
        is_float = lambda x: jnp.issubdtype(x.dtype, jnp.floating)
        return [x for x in jax.tree.leaves(state) if is_float(x)]

    def push(data, theta, key, d_theta, d_floats):
        init = lambda theta: system.init_state(theta, data, 1, key)
        _, d_start = jax.jvp(lambda theta: floats(init(theta)), (theta,), (d_theta,))
        state = init(theta)
        x = system.sample_input(data, state, key)

        def step(theta, values):
            values = iter(values)
            leaves, treedef = jax.tree.flatten(state)
            put = lambda x: next(values) if floats(x) else x
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
    # What theta moves at the start, in the first step, the second, and so on.
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
    """Returns what depends on `inputs`; a derivative that is zero does not."""
    reached = set(inputs)
    for equation in jaxpr.eqns:
        operands = {v for v in equation.invars if not isinstance(v, Literal)}
        if reached & operands:
            reached.update(equation.outvars)
    return list(reached)  # literals, which are asked for too, cannot be hashed


def _name(part: Any) -> str:
    return type(part).__name__


def _bytes(size: float) -> str:
    for unit in ("bytes", "kB", "MB", "GB", "TB"):
        if size < 1000 or unit == "TB":
            return f"{size:.3g} {unit}"
        size /= 1000
    raise AssertionError
