"""Train parameters and optimizer state that are sharded over 8 devices.

    python examples/sharded_parameters.py [FILE] [--num-steps 500]

FILE defaults to runs/demo/optimizer.safetensors; run `make demo` to create it. The
devices are simulated on the CPU.
"""

import argparse

import jax
import jax.numpy as jnp
import optax
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P
from sklearn.datasets import load_digits

import lopt

SPECS = {"w1": P(None, "model"), "b1": P("model"), "w2": P("model", None)}


def main(path: str, num_steps: int) -> None:
    """Train the model; print the loss before and after, and the shardings."""
    jax.config.update("jax_num_cpu_devices", 8)
    mesh = jax.make_mesh((8,), ("model",), axis_types=(AxisType.Auto,))
    pixels, labels = load_digits(return_X_y=True)
    images, labels = jnp.asarray(pixels / 16, jnp.float32), jnp.asarray(labels)
    keys = jax.random.split(jax.random.key(0))
    params = {
        "w1": jax.random.normal(keys[0], (64, 32)) / 8,
        "b1": jnp.zeros(32),
        "w2": jax.random.normal(keys[1], (32, 10)) / 6,
    }
    shardings = {name: NamedSharding(mesh, spec) for name, spec in SPECS.items()}
    params = jax.device_put(params, shardings)

    optimizer = lopt.load(path, num_steps=num_steps)
    # Outside `jit`, the state takes the sharding of the parameters. Inside, XLA would
    # choose the sharding of the zeros.
    state = optimizer.init(params)

    def loss(params, x, y):
        logits = jax.nn.relu(x @ params["w1"] + params["b1"]) @ params["w2"]
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
    for name, param in params.items():
        print(f"{name} {param.shape}: {param.sharding.spec}")
    for leaf in jax.tree.leaves(state):
        print(f"state {leaf.shape}: {getattr(leaf.sharding, 'spec', 'one device')}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("path", nargs="?", default="runs/demo/optimizer.safetensors")
    parser.add_argument("--num-steps", type=int, default=500)
    main(**vars(parser.parse_args()))
