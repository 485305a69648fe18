"""Accumulators and scale-free features of the tensors of `LearnedMuon`."""

from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from lopt.adapter import LeafInputs, StepInfo
from lopt.optimizers.features import decayed, mean_square
from lopt.optimizers.grouping import stack

FEATURES = (
    "progress",
    "log_remaining",
    "log_horizon",
    "log_step",
    "is_start",
    *(local := ("alignment", "agreement", "fast_snr", "slow_snr", "growth")),
    *(f"mean_{name}" for name in local),
)
"""Inputs of the learned schedule; the last five are means over all tensors."""

FAST, SLOW, SECOND, _SMOOTHING = 0.9, 0.99, 0.98, 0.9
_LARGEST = 1e12  # bound on gradients divided by `Scales.unit`
_SPIKE = 10.0  # gradients are clipped to this multiple of their running RMS
TINY = 1e-30

Reference: TypeAlias = Callable[[Sequence[int], Float[Array, ""]], Array]


class Moments(NamedTuple):
    """Accumulators of one tensor, over gradients divided by `Scales.unit`.

    Attributes:
        fast: Momentum with decay 0.9.
        slow: Momentum with decay 0.99.
        row: Second moments of a vector, or their row means for a matrix.
        col: Column means of the second moments of a matrix; unused for a vector.
    """

    fast: Float[Array, "..."]
    slow: Float[Array, "..."]
    row: Float[Array, "..."]
    col: Float[Array, "..."]


class Scales(NamedTuple):
    """Scalar state of every tensor, stacked along the first axis.

    Attributes:
        unit: Largest absolute entry of the first nonzero, finite gradient; 0 until
            then.
        reference: Reference scale, from the RMS at the first update of the tensor (see
            `LearnedMuon.reference`); 0 until then.
        alignment: Moving average of the cosine between the gradient and `fast`, before
            bias correction.
    """

    unit: Float[Array, " tensors"]
    reference: Float[Array, " tensors"]
    alignment: Float[Array, " tensors"]


class Observed(NamedTuple):
    """Normalized gradient, accumulators and statistics of one tensor.

    Attributes:
        grad: Gradient divided by `Scales.unit` and clipped.
        moments: Updated accumulators.
        scales: Updated scalar state.
        features: The five local features of `FEATURES`.
        rms: RMS of the parameter.
    """

    grad: Float[Array, "..."]
    moments: Moments
    scales: Scales
    features: Float[Array, " local"]
    rms: Float[Array, ""]


def all_features(
    local: Float[Array, "tensors local"], info: StepInfo
) -> Float[Array, "tensors features"]:
    """Concatenate time, local and mean features in the order of `FEATURES`.

    Args:
        local: Local features of each tensor, from `observe_group`.
        info: Step index and horizon.
    """
    step = info.step.astype(jnp.float32)  # clamped past the horizon
    time = jnp.stack(
        [
            2 * info.progress - 1,
            # Progress rounds to one for horizons above 2**24 steps.
            jnp.log10(jnp.maximum(1 - info.progress, 1e-8)) + 0.4,
            jnp.log10(info.num_steps) - 2.3,
            jnp.log10(step + 1) - 1.5,
            jnp.exp(-step / 10),
        ]
    )
    everywhere = jnp.broadcast_to(time[None], (len(local), time.size))
    mean = jnp.broadcast_to(local.mean(axis=0, keepdims=True), local.shape)
    return jnp.concatenate([everywhere, local, mean], axis=1)


def observe_group(
    tensors: Sequence[LeafInputs], scales: Scales, count: Array, reference: Reference
) -> Observed:
    """Apply `_observe` to the stacked tensors of one group (same shape and kind)."""
    grads, params, states = stack([(t.grad, t.param, t.state) for t in tensors])

    def observe(grad, param, state, scales):
        now = count.astype(jnp.float32)
        return _observe(grad, param, state, scales, now, reference)

    return jax.vmap(observe)(grads, params, states, scales)


def _observe(
    grad: Float[Array, "..."],
    param: Float[Array, "..."],
    moments: Moments,
    scales: Scales,
    count: Float[Array, ""],
    reference: Reference,
) -> Observed:
    """Update the accumulators and compute the local features of one tensor."""
    peak = jnp.max(jnp.abs(grad))
    is_first = (scales.unit == 0) & jnp.isfinite(peak)
    unit = jnp.where(is_first, peak, scales.unit)
    grad = jnp.clip(grad / jnp.where(unit == 0, 1.0, unit), -_LARGEST, _LARGEST)
    # Infinite gradients before the first finite one have no scale: skip them.
    grad = jnp.where((unit == 0) & jnp.isinf(peak), 0.0, grad)
    power = mean_square(grad)
    before = jnp.mean(moments.row) / bias_correction(SECOND, jnp.maximum(count - 1, 0))
    limit = jnp.where(before > 0, _SPIKE**2 * before, jnp.inf)
    shrink = jnp.sqrt(jnp.minimum(1.0, limit / (power + TINY)))
    grad, power = grad * shrink, power * shrink**2
    fast = decayed(moments.fast, grad, FAST)
    slow = decayed(moments.slow, grad, SLOW)
    row, col, squares = moments.row, moments.col, jnp.square(grad)
    if grad.ndim == 1:
        row = decayed(row, squares, SECOND)
    else:
        squares = squares.reshape(row.shape[0], col.shape[1])
        row = decayed(row, squares.mean(axis=1, keepdims=True), SECOND)
        col = decayed(col, squares.mean(axis=0, keepdims=True), SECOND)
    inverse = jax.lax.rsqrt(jnp.stack([power, *map(mean_square, (fast, slow))]) + TINY)
    alignment = decayed(
        scales.alignment, jnp.mean(grad * fast) * inverse[0] * inverse[1], _SMOOTHING
    )
    agreement = jnp.mean(fast * slow) * inverse[1] * inverse[2]
    second = jnp.mean(row) / bias_correction(SECOND, count) + TINY
    snr = [
        jnp.square(1 / (inverse[i] * bias_correction(decay, count))) / second
        for i, decay in ((1, FAST), (2, SLOW))
    ]
    rms = jnp.sqrt(mean_square(param))
    # Set at the first update of this tensor: gradients may be `None` until later.
    scale = jnp.where(
        scales.reference == 0, reference(param.shape, rms), scales.reference
    )
    features = jnp.stack(
        [
            3 * alignment / bias_correction(_SMOOTHING, count) - 1,
            2 * agreement - 1,
            jnp.log10(snr[0] + 1e-4) + 1,
            jnp.log10(snr[1] + 1e-4) + 2,
            jnp.clip(jnp.log(rms / scale + 1e-3), -3.0, 3.0),
        ]
    )
    scales = Scales(unit, scale, alignment)
    return Observed(grad, Moments(fast, slow, row, col), scales, features, rms)


def bias_correction(decay: float, count: Float[Array, ""]) -> Float[Array, ""]:
    """Bias correction of a zero-initialized average of ``count + 1`` values."""
    return 1 - decay ** (count + 1)
