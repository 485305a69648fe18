"""What a learned optimizer knows about each parameter, and about the time."""

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

MOMENTUM_DECAYS = (0.1, 0.5, 0.9, 0.99, 0.999, 0.9999)
TIME_SCALES = (1, 3, 10, 30, 100, 300, 1e3, 3e3, 1e4, 3e4, 1e5)


def time_features(step: Int[Array, ""]) -> Float[Array, " time"]:
    """Returns ``tanh(step / scale - 1)``: which time scales have passed."""
    return jnp.tanh(step.astype(jnp.float32) / jnp.asarray(TIME_SCALES) - 1.0)


def rms_scale(feature: Float[Array, " n"]) -> Float[Array, ""]:
    """Returns the factor that brings a feature of a tensor to unit RMS."""
    return 1.0 / jnp.sqrt(1e-5 + jnp.mean(feature**2))
