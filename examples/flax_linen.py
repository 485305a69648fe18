"""Train a Flax Linen model on digits with a learned optimizer.

    python examples/flax_linen.py [runs/demo/optimizer.safetensors] [--num-steps 500]

Run `make demo` to create the optimizer file. The learned optimizer is one
transformation in an `optax.chain`.
"""

import argparse

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax
from sklearn.datasets import load_digits

import lopt


def main(path: str, num_steps: int) -> None:
    """Train the model and print the loss over all digits before and after."""
    pixels, labels = load_digits(return_X_y=True)
    images, labels = jnp.asarray(pixels / 16, jnp.float32), jnp.asarray(labels)
    model = nn.Sequential([nn.Dense(32), nn.relu, nn.Dense(10)])
    params = model.init(jax.random.key(0), images[:1])

    optimizer = optax.chain(
        optax.clip_by_global_norm(1.0), lopt.load(path, num_steps=num_steps)
    )
    state = optimizer.init(params)

    def loss(params, x, y):
        logits = jnp.asarray(model.apply(params, x))
        return optax.softmax_cross_entropy_with_integer_labels(logits, y).mean()

    @jax.jit
    def step(params, state, key):
        batch = jax.random.randint(key, (64,), 0, len(images))
        value, grads = jax.value_and_grad(loss)(params, images[batch], labels[batch])
        # Some learned optimizers require the loss; the others ignore it.
        updates, state = optimizer.update(grads, state, params, value=value)
        return optax.apply_updates(params, updates), state

    print(f"loss at the beginning: {loss(params, images, labels):.4f}")
    for i in range(num_steps):
        params, state = step(params, state, jax.random.key(i))
    print(f"loss at the end: {loss(params, images, labels):.4f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("path", nargs="?", default="runs/demo/optimizer.safetensors")
    parser.add_argument("--num-steps", type=int, default=500)
    main(**vars(parser.parse_args()))
