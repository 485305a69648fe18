"""Loading of trained optimizers as optax transformations."""

import math
import threading
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import jax.core
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float

from lopt.base import NumSteps
from lopt.errors import UserError
from lopt.files.format import make_optimizer, read_file
from lopt.pretrained import resolve

_LARGEST_COUNT = 2**31 - 1


def load(
    path: str | Path,
    num_steps: NumSteps | float | Float[Array, ""] | None = None,
    *,
    learning_rate_scale: float | Float[Array, ""] = 1.0,
    weight_decay: float | Float[Array, ""] = 0.0,
) -> optax.GradientTransformationExtraArgs:
    """Load a trained optimizer as an optax transformation.

    Warns if `num_steps` is above the longest horizon of meta-training or below half the
    shortest. Warns once per file if `update` is called more than `num_steps` times.

    Args:
        path: Name of a shipped optimizer (`lopt.list_pretrained()`), or a file written
            by `save`, `lopt meta-train` or `lopt export`.
        num_steps: Number of updates of the training run. Required: the schedule
            depends on it.
        learning_rate_scale: Factor applied to every update.
        weight_decay: Decoupled weight decay. Each update subtracts this fraction of
            every tensor of rank two or more, annealed linearly to zero over the run. It
            is not multiplied by `learning_rate_scale`.

    Returns:
        An optax gradient transformation.

    Raises:
        UserError: If the file cannot be read or an argument is invalid.
    """
    total = _whole_number(num_steps)
    _check_knobs(learning_rate_scale, weight_decay)
    file = resolve(path)
    header, tensors = read_file(file)
    optimizer, theta = make_optimizer(path, header, tensors)
    _warn_of_horizon(path, total, header["card"])
    inner = optimizer.as_optax(theta, total)
    if _is_set(learning_rate_scale, 1.0):
        inner = _chained(inner, optax.scale(learning_rate_scale))
    if _is_set(weight_decay, 0.0):
        inner = _chained(inner, _annealed_weight_decay(weight_decay, total))
    return _with_end(inner, total, path)


def _whole_number(num_steps: Any) -> NumSteps:
    """Validate `num_steps` and clamp it to int32; traced values are only cast."""
    if num_steps is None:
        raise UserError(
            "`num_steps` must be given: a learned optimizer schedules its steps over "
            "the run. Try lopt.load(path, num_steps=1000)."
        )
    if isinstance(num_steps, jax.core.Tracer):
        return num_steps.astype(jnp.int32)
    try:
        number = float(num_steps)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not (1 <= number < math.inf and number == int(number)):
        raise UserError(
            f"`num_steps` must be an integer of at least 1; got {num_steps}. Try 1000."
        )
    return min(int(number), _LARGEST_COUNT)


def _check_knobs(learning_rate_scale: Any, weight_decay: Any) -> None:
    limits = {
        "learning_rate_scale": (learning_rate_scale, "positive and finite", 1.0),
        "weight_decay": (weight_decay, "at least 0 and below 1", 1e-4),
    }
    for name, (value, wanted, example) in limits.items():
        if isinstance(value, jax.Array):
            continue  # traced by `optax.inject_hyperparams`, so unknown here
        least = 0 <= value < 1 if name == "weight_decay" else 0 < value < math.inf
        if not least:
            raise UserError(f"`{name}` must be {wanted}; got {value}. Try {example}.")


def _is_set(value: Any, default: float) -> bool:
    """Check whether a value may differ from its default; true for JAX arrays."""
    return isinstance(value, jax.Array) or value != default


def _chained(
    *transformations: optax.GradientTransformation,
) -> optax.GradientTransformationExtraArgs:
    return optax.with_extra_args_support(optax.chain(*transformations))


def _annealed_weight_decay(
    weight_decay: float | Float[Array, ""], num_steps: NumSteps
) -> optax.GradientTransformation:
    """Decoupled weight decay of tensors of rank >= 2, annealed linearly to zero."""

    def schedule(count):
        progress = jnp.minimum(count / jnp.asarray(num_steps, jnp.float32), 1.0)
        return -weight_decay * (1.0 - progress)

    def is_matrix(params):
        return jax.tree.map(lambda x: jnp.ndim(x) >= 2, params)

    return optax.add_decayed_weights(schedule, mask=is_matrix)


def _warn_of_horizon(path: Any, num_steps: NumSteps, card: Mapping[str, Any]) -> None:
    """Warn of runs longer than all training horizons, or under half the shortest."""
    horizons = card.get("horizons")
    numbers = horizons if isinstance(horizons, list) else [horizons]
    # Cards may contain NaN, and integers that no float can hold.
    known = [x for x in numbers if isinstance(x, int | float) and abs(x) < 2**63]
    if not known or not isinstance(num_steps, int):
        return
    if min(known) / 2 <= num_steps <= max(known):
        return
    warnings.warn(
        f"{path} was meta-trained for runs of {min(known):g} to {max(known):g} steps; "
        f"got num_steps={num_steps}, where it may perform poorly.",
        stacklevel=3,
    )


_lock = threading.Lock()
_warned: set[Path] = set()


def _with_end(
    inner: optax.GradientTransformationExtraArgs,
    num_steps: NumSteps,
    path: str | Path,
) -> optax.GradientTransformationExtraArgs:
    """Wrap `inner` to warn, once per file, about updates past `num_steps`."""

    def warn(is_over, total):
        with _lock:  # callbacks of different devices run on different threads
            if not is_over or Path(path).absolute() in _warned:
                return
            _warned.add(Path(path).absolute())
        warnings.warn(
            f"`update` of {path} was called more than num_steps={total} times; time "
            "features are frozen. Load it with the number of steps of the run.",
            stacklevel=2,
        )

    def watch(is_over, total):
        if isinstance(is_over, jax.core.Tracer):
            watch_traced(is_over, total)
        else:
            warn(bool(is_over), int(total))

    # Under vmap, `cond` runs both branches: the callback would run for every member of
    # the batch at every step. The custom rule calls it once any member is past the end.
    @jax.custom_batching.custom_vmap
    def watch_traced(is_over, total):
        def call():
            return jax.debug.callback(warn, is_over, total)

        jax.lax.cond(is_over, call, lambda: None)
        return ()

    @watch_traced.def_vmap
    def _(axis_size, in_batched, is_over, total):
        del axis_size, in_batched
        watch(jnp.any(is_over), jnp.max(jnp.where(is_over, total, 0)))
        return (), ()

    def update(updates, state, params=None, **extra_args):
        count = _count(state)
        if count is not None:
            watch(count >= num_steps, jnp.asarray(num_steps))
        return inner.update(updates, state, params, **extra_args)

    return optax.GradientTransformationExtraArgs(inner.init, update)


def _count(state: Any) -> Any:
    """Find the number of updates in an optimizer state, or `None` if absent."""
    for _, count in optax.tree.get_all_with_path(state, "count"):
        is_integer = jnp.issubdtype(jnp.result_type(count), jnp.integer)
        if is_integer and jnp.shape(count) == ():
            return count
    return None
