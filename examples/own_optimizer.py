"""Define a learned optimizer, meta-train it with PES, export it and load it.

    python examples/own_optimizer.py [mine.safetensors] [--num-outer-steps 100]

A learned optimizer is a class with three methods: `init_theta` initializes the outer
parameters, `init_tensor` initializes the state of one tensor, and `update_tensor`
computes the update and the new state of one tensor. `PerTensorOptimizer` handles
pytrees, dtypes, shardings and the optax interface.
"""

import argparse
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import optax
from typing_extensions import override

import lopt
import tasks
from meta_train import PES, InnerTraining, OuterAdam, Trainer, Truncation


# Registered, because `lopt.load` finds the architecture of a file by name.
@lopt.register_optimizer
@dataclass(frozen=True)
class SignMix(lopt.PerTensorOptimizer):
    """Momentum and sign of momentum, each with a learned learning rate.

    With gradient ``g``, step ``t`` and horizon ``T``, the update of a tensor is::

        m <- decay * m + (1 - decay) * g
        p <- p - (1 - t/T) * (exp(theta[0]) * m + exp(theta[1]) * sign(m))
    """

    decay: float = 0.9
    """Decay rate of the momentum."""

    @override
    def init_theta(self, key):
        return jnp.log(jnp.asarray([1e-3, 1e-3], jnp.float32))

    @override
    def init_tensor(self, param):
        return jnp.zeros_like(param, dtype=jnp.float32)

    @override
    def update_tensor(self, theta, tensor: lopt.LeafInputs, info: lopt.StepInfo):
        momentum = self.decay * tensor.state + (1 - self.decay) * tensor.grad
        rate, sign_rate = jnp.exp(theta) * (1 - info.progress)
        return -rate * momentum - sign_rate * jnp.sign(momentum), momentum


def main(path: str, num_outer_steps: int) -> None:
    """Meta-train, print the meta-loss before and after, export to `path` and load."""
    system = InnerTraining(tasks.RandomQuadratic(), SignMix())
    trainer = Trainer(
        systems=(system,),
        estimator=PES(Truncation(length=10, horizon=100), num_pairs=32, std=0.1),
        outer_optimizer=OuterAdam(learning_rate=0.05),
        num_outer_steps=num_outer_steps,
    )
    data, key = trainer.load(), jax.random.key(1)
    state = trainer.init(data, seed=0)
    before = trainer.meta_loss(data, state.theta, 100, 16, key)
    state, _ = trainer.run(data, state, num_outer_steps)
    after = trainer.meta_loss(data, state.theta, 100, 16, key)
    print(f"meta-loss at the beginning: {before[0]:.4f}")
    print(f"meta-loss at the end: {after[0]:.4f}")

    lopt.save(path, SignMix(), state.theta, card={"tasks": ["RandomQuadratic"]})
    optimizer = lopt.load(path, num_steps=100)
    params = {"x": jnp.ones(3)}
    updates, _ = optimizer.update(params, optimizer.init(params), params)
    print(f"{path}: {optax.apply_updates(params, updates)}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("path", nargs="?", default="mine.safetensors")
    parser.add_argument("--num-outer-steps", type=int, default=100)
    main(**vars(parser.parse_args()))
