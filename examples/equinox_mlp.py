"""Train an Equinox model on digits with a learned optimizer.

    python examples/equinox_mlp.py [runs/demo/optimizer.safetensors] [--num-steps 500]

Run `make demo` to create the optimizer file, and `pip install equinox`.
"""

import argparse

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from sklearn.datasets import load_digits

import lopt


def main(path: str, num_steps: int) -> None:
    """Train the model and print the loss over all digits before and after."""
    pixels, labels = load_digits(return_X_y=True)
    images, labels = jnp.asarray(pixels / 16, jnp.float32), jnp.asarray(labels)
    model = eqx.nn.MLP(64, 10, width_size=32, depth=1, key=jax.random.key(0))
    optimizer = optax.chain(
        optax.clip_by_global_norm(1.0), lopt.load(path, num_steps=num_steps)
    )
    state = optimizer.init(eqx.filter(model, eqx.is_inexact_array))

    def loss(model, x, y):
        logits = jax.vmap(model)(x)
        return optax.softmax_cross_entropy_with_integer_labels(logits, y).mean()

    @eqx.filter_jit
    def step(model, state, key):
        batch = jax.random.randint(key, (64,), 0, len(images))
        value_and_grad = eqx.filter_value_and_grad(loss)
        value, grads = value_and_grad(model, images[batch], labels[batch])
        params = eqx.filter(model, eqx.is_inexact_array)
        # Some learned optimizers require the loss; the others ignore it.
        updates, state = optimizer.update(grads, state, params, value=value)
        return eqx.apply_updates(model, updates), state

    print(f"loss at the beginning: {loss(model, images, labels):.4f}")
    for i in range(num_steps):
        model, state = step(model, state, jax.random.key(i))
    print(f"loss at the end: {loss(model, images, labels):.4f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("path", nargs="?", default="runs/demo/optimizer.safetensors")
    parser.add_argument("--num-steps", type=int, default=500)
    main(**vars(parser.parse_args()))
