"""Train a Flax NNX model on digits with a learned optimizer in an `nnx.Optimizer`.

    python examples/flax_nnx.py [runs/demo/optimizer.safetensors] [--num-steps 500]

Run `make demo` to create the optimizer file.
"""

import argparse

import jax
import jax.numpy as jnp
import optax
from flax import nnx
from sklearn.datasets import load_digits

import lopt


def main(path: str, num_steps: int) -> None:
    """Train the model and print the loss over all digits before and after."""
    pixels, labels = load_digits(return_X_y=True)
    images, labels = jnp.asarray(pixels / 16, jnp.float32), jnp.asarray(labels)
    rngs = nnx.Rngs(0)
    model = nnx.Sequential(
        nnx.Linear(64, 32, rngs=rngs), nnx.relu, nnx.Linear(32, 10, rngs=rngs)
    )
    tx = optax.chain(
        optax.clip_by_global_norm(1.0), lopt.load(path, num_steps=num_steps)
    )
    optimizer = nnx.Optimizer(model, tx, wrt=nnx.Param)

    def loss(model, x, y):
        return optax.softmax_cross_entropy_with_integer_labels(model(x), y).mean()

    @nnx.jit
    def step(model, optimizer, key):
        batch = jax.random.randint(key, (64,), 0, len(images))
        value, grads = nnx.value_and_grad(loss)(model, images[batch], labels[batch])
        # Some learned optimizers require the loss; the others ignore it.
        optimizer.update(model, grads, value=value)

    print(f"loss at the beginning: {loss(model, images, labels):.4f}")
    for i in range(num_steps):
        step(model, optimizer, jax.random.key(i))
    print(f"loss at the end: {loss(model, images, labels):.4f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("path", nargs="?", default="runs/demo/optimizer.safetensors")
    parser.add_argument("--num-steps", type=int, default=500)
    main(**vars(parser.parse_args()))
