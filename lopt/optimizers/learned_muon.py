"""Orthogonalized momentum with learned, horizon-aware, relative step sizes."""

import enum
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray
from typing_extensions import override

from lopt.adapter import LeafInputs, StepInfo, TensorOptimizer
from lopt.base import Theta
from lopt.optimizers.features import mean_square, zeros_like
from lopt.optimizers.grouping import group, split, unstack
from lopt.optimizers.normalized_mlp import orthogonalized
from lopt.optimizers.tensor_statistics import (
    FAST,
    FEATURES,
    SECOND,
    SLOW,
    TINY,
    Moments,
    Observed,
    Scales,
    all_features,
    bias_correction,
    observe_group,
)

OUTPUTS = ("log_step_size", "gradient_logit", "slow_logit", "blend_logit")


class Kind(enum.IntEnum):
    """Update direction of a tensor."""

    VECTOR = 0
    """Rank one: an Adam direction."""
    TABLE = 1
    """Embedding, or bias of rank two or more: an Adafactor direction."""
    MATRIX = 2
    """Any other tensor: a blend of orthogonalized and Adafactor directions."""


class _Control(NamedTuple):
    """Outputs of the learned schedule, one row per tensor.

    Attributes:
        step_size: Absolute step size, the factor on the direction.
        weights: Weights of the gradient, `fast` and `slow`; they sum to one.
        blend: Weight of the Adafactor direction, in (0, 1).
    """

    step_size: Float[Array, " tensors"]
    weights: Float[Array, "tensors 3"]
    blend: Float[Array, " tensors"]


@dataclass(frozen=True)
class LearnedMuon(TensorOptimizer):
    """Muon-like optimizer with learned step size, momentum and direction.

    For a tensor ``p`` with gradient ``g``, the update at step ``t`` of ``T`` is::

        m = w_0 g + w_1 fast + w_2 slow           # softmax weights, bias-corrected
        d = (1 - b) orthogonalize(m) + b adafactor(m)      # each of unit RMS
        p <- p - base * exp(s) * (1 - t/T) * max(rms(p), reference) * d

    ``s`` and the logits of ``w`` and ``b`` are linear in `FEATURES`: time, horizon, and
    scale-free statistics of the tensor and of all tensors. ``s`` is clipped to [-8, 3].
    `theta` has 72 weights. Vectors use an Adam direction, and tables
    (embeddings) an Adafactor direction. The initial `theta` gives a Nesterov-like
    mixture of gradient and momenta with linear decay to zero.

    There is no learning rate to tune: updates are invariant to the scale of the loss,
    and step sizes are relative to the RMS of the tensor or to its reference scale.

    Kernels of rank above two are flattened to the most nearly square matrix that keeps
    the order of their axes. Orthogonalization follows Muon (Jordan et al., 2024).
    """

    matrix_step: float = 0.03
    """Base step size of matrices, relative to their RMS."""
    table_step: float = 0.03
    """Base step size of tables, relative to their RMS."""
    vector_step: float = 0.01
    """Base step size of vectors, relative to their RMS or to `vector_floor`."""
    vector_floor: float = 0.3
    """Lower bound on the reference scale of vectors."""
    zero_init: float = 0.01
    """Tensors of rank two or more with an initial RMS below this fraction of
    1/sqrt(fan_in) use 1/sqrt(fan_in) as their reference scale."""

    def __post_init__(self):
        steps = (self.matrix_step, self.table_step, self.vector_step)
        if not min(*steps, self.vector_floor) > 0 or not self.zero_init >= 0:
            raise ValueError(
                "step sizes and `vector_floor` must be positive and `zero_init` not "
                f"negative; got {self}. Try LearnedMuon()."
            )

    @override
    def init_theta(self, key: PRNGKeyArray) -> Theta:
        linear = jnp.zeros((len(FEATURES), len(OUTPUTS)), jnp.float32)
        # Initially, longer runs use smaller steps, and steps grow with the square root
        # of the tensor's RMS.
        for name in ("log_horizon", "growth"):
            linear = linear.at[FEATURES.index(name), 0].set(-0.5)
        bias = jnp.asarray([0.0, -2.0, -2.0, -3.0], jnp.float32)
        return {"linear": linear, "bias": jnp.tile(bias[None], (len(Kind), 1))}

    @override
    def init_tensor(self, param: Float[Array, "..."]) -> Moments:
        row, col = zeros_like(param), jnp.zeros(1, jnp.float32)
        if param.ndim > 1:
            rows, cols = _matrix_shape(param.shape)
            row = jnp.zeros((rows, 1), jnp.float32)
            col = jnp.zeros((1, cols), jnp.float32)
        return Moments(zeros_like(param), zeros_like(param), row, col)

    @override
    def init_shared(self, num_tensors: int) -> Scales:
        return Scales(*(jnp.zeros(num_tensors, jnp.float32) for _ in Scales._fields))

    @override
    def update_tensors(
        self,
        theta: Theta,
        tensors: Sequence[LeafInputs],
        shared: Scales,
        info: StepInfo,
    ) -> tuple[list[tuple[Array, Moments]], Scales]:
        if not tensors:
            return [], shared
        groups = group(tensors, lambda t: (t.grad.shape, _kind(t)))
        order = [i for members in groups.values() for i in members]
        places = np.asarray([tensors[i].leaf_index for i in order])
        scales = split(jax.tree.map(lambda x: x[places], shared), groups)
        observed = [
            observe_group(
                [tensors[i] for i in members], part, info.count, self.reference
            )
            for members, part in zip(groups.values(), scales, strict=True)
        ]
        scales, local, rms = (
            jax.tree.map(lambda *x: jnp.concatenate(x), *parts)
            for parts in zip(
                *[(o.scales, o.features, o.rms) for o in observed], strict=True
            )
        )
        features = self.features([tensors[i] for i in order], local, info)
        kinds = np.asarray([_kind(tensors[i]) for i in order])
        control = self._control(theta, features, kinds, scales, rms, info)
        results: dict[int, tuple[Array, Moments]] = {}
        for (_, kind), members, seen, part in zip(
            groups, groups.values(), observed, split(control, groups), strict=True
        ):
            steps = _step_group(kind, seen, part, info.count)
            results |= zip(members, unstack((steps, seen.moments)), strict=True)

        def put(old, new):
            return old.at[places].set(new)

        shared = jax.tree.map(put, shared, scales)
        return [results[i] for i in range(len(tensors))], shared

    def features(
        self,
        tensors: Sequence[LeafInputs],
        local: Float[Array, "tensors local"],
        info: StepInfo,
    ) -> Float[Array, "tensors features"]:
        """Compute the inputs of the learned schedule, one row per tensor.

        Override this method, and `init_theta`, to add inputs.

        Args:
            tensors: Tensors in the order of the rows.
            local: Local features of each tensor, from `observe_group`.
            info: Step index, horizon and loss.
        """
        del tensors
        return all_features(local, info)

    def _control(
        self,
        theta: Theta,
        features: Float[Array, "tensors features"],
        kinds: np.ndarray,
        scales: Scales,
        rms: Float[Array, " tensors"],
        info: StepInfo,
    ) -> _Control:
        outputs = features @ theta["linear"] + theta["bias"][kinds]
        log_step, gradient, slow, blend = outputs.T
        base = np.asarray([self.vector_step, self.table_step, self.matrix_step])[kinds]
        size = jnp.exp(jnp.clip(log_step, -8.0, 3.0)) * (1 - info.progress) * base
        logits = jnp.stack([gradient, jnp.zeros_like(slow), slow], axis=1)
        return _Control(
            step_size=size * jnp.maximum(rms, scales.reference),
            weights=jax.nn.softmax(logits),
            blend=jax.nn.sigmoid(blend),
        )

    def reference(self, shape: Sequence[int], rms: Float[Array, ""]) -> Array:
        """Compute the reference scale of a tensor from its initial RMS.

        Vectors: the RMS, at least `vector_floor`. Other tensors: the RMS, or
        1/sqrt(fan_in) if the RMS is below `zero_init` / sqrt(fan_in).
        """
        if len(shape) == 1:
            return jnp.maximum(rms, self.vector_floor)
        default = 1 / math.sqrt(max(math.prod(shape[:-1]), 1))
        return jnp.where(rms < self.zero_init * default, default, rms)


def _kind(tensor: LeafInputs) -> Kind:
    if tensor.grad.ndim == 1:
        return Kind.VECTOR
    is_table = "embed" in tensor.name or "bias" in tensor.name
    return Kind.TABLE if is_table else Kind.MATRIX


def _matrix_shape(shape: Sequence[int]) -> tuple[int, int]:
    """Shape of the most nearly square matrix that keeps the order of the axes."""
    splits = [(math.prod(shape[:i]), math.prod(shape[i:])) for i in range(len(shape))]
    return min(reversed(splits[1:]), key=lambda s: max(s) / max(min(s), 1))


def _step_group(
    kind: Kind, seen: Observed, control: _Control, count: Array
) -> Float[Array, "group ..."]:
    """Compute the stacked updates of one group of tensors (same shape and kind)."""
    filled = [
        bias_correction(decay, count.astype(jnp.float32)) for decay in (FAST, SLOW)
    ]

    def step(grad, moments, size, weights, blend):
        mixed = weights[0] * grad + weights[1] * moments.fast / filled[0]
        mixed += weights[2] * moments.slow / filled[1]
        return -size * _direction(kind, mixed, moments, blend, count)

    return jax.vmap(step)(seen.grad, seen.moments, *control)


def _direction(
    kind: Kind,
    mixed: Float[Array, "..."],
    moments: Moments,
    blend: Float[Array, ""],
    count: Array,
) -> Float[Array, "..."]:
    """Normalize the mixed momentum of one tensor.

    Args:
        kind: Selects the Adam, Adafactor or blended direction.
        mixed: Weighted sum of the gradient and bias-corrected momenta.
        moments: Accumulators, for the second moments.
        blend: Weight of the Adafactor direction of a matrix.
        count: Step index, for bias correction.

    Returns:
        Vectors: ``mixed / sqrt(second)``. Tables: the Adafactor direction, of unit RMS.
        Matrices: ``(1 - blend) * orthogonal + blend * adafactor``, each of unit RMS.
    """
    if kind == Kind.VECTOR:
        second = moments.row / bias_correction(SECOND, count.astype(jnp.float32))
        return mixed * jax.lax.rsqrt(second + 1e-9 * jnp.mean(second) + TINY)
    matrix = mixed.reshape(moments.row.shape[0], moments.col.shape[1])
    row, col = (x / (jnp.mean(x) + TINY) for x in (moments.row, moments.col))
    scaled = matrix * jax.lax.rsqrt(row + 1e-6) * jax.lax.rsqrt(col + 1e-6)
    direction = _unit_rms(scaled)
    if kind == Kind.MATRIX:
        orthogonal = _unit_rms(orthogonalized(_unit_rms(matrix)))
        direction = (1 - blend) * orthogonal + blend * direction
    return direction.reshape(mixed.shape)


def _unit_rms(x: Float[Array, "..."]) -> Float[Array, "..."]:
    return x * jax.lax.rsqrt(mean_square(x) + TINY)
