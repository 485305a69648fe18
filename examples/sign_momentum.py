"""An optimizer of one's own: `--optimizer examples/sign_momentum.py:SignMomentum`."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp

from lopt import PerTensorOptimizer


@dataclass(frozen=True)
class SignMomentum(PerTensorOptimizer):
    """Sign of the momentum, with a learned decay and step size."""

    initial_step: float = 0.01
    """Step size before meta-training."""

    def init_theta(self, key):
        """Initialize step size and decay."""
        log_step = jnp.log(jnp.float32(self.initial_step))
        return {"log_step": log_step, "logit_decay": jnp.float32(2.0)}

    def init_tensor(self, param):
        """Initialize the momentum."""
        return jnp.zeros_like(param)

    def update_tensor(self, theta, tensor, info):
        """Step along the sign of the momentum."""
        decay = jax.nn.sigmoid(theta["logit_decay"])
        grad = jnp.clip(tensor.grad, -1e15, 1e15)
        momentum = decay * tensor.state + (1 - decay) * grad
        step = jnp.exp(theta["log_step"]) * (1 - info.progress)
        return -step * jnp.sign(momentum), momentum
