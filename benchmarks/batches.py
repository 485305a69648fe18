"""Benchmark the cost of batch sampling: ``python -m benchmarks.batches``.

Compares training steps that sample a batch each with steps that index into a few
presampled batches, in CPU time and in wall time.
"""

import statistics
import time

import jax
import jax.numpy as jnp
import optax

from lopt.cli.main import tune_cpu_compiler
from tasks.base import Task
from tasks.zoo import ZOO

NUM_STEPS, NUM_READY, REPEATS = 200, 8, 25


def main() -> None:
    """Print the time per step with sampled and with presampled batches."""
    tune_cpu_compiler()
    for name in ("digits-mlp", "mnist-mlp"):
        task = ZOO[name].problem
        assert isinstance(task, Task)
        data, key = task.load(), jax.random.key(0)
        optimizer = optax.adam(1e-3)

        def run(data, params, key, draws, task=task, optimizer=optimizer):
            def draw(key):
                return task.sample_batch(data, key)

            keys = jax.random.split(key, NUM_STEPS)
            # Several batches, because XLA would hoist computations on a single one
            # out of the loop.
            ready = jax.vmap(draw)(keys[:NUM_READY])

            def step(carry, x):
                params, opt_state = carry
                i, key = x
                batch = draw(key) if draws else jax.tree.map(lambda b: b[i], ready)
                loss, grads = jax.value_and_grad(task.loss)(params, batch)
                updates, opt_state = optimizer.update(grads, opt_state)
                return (optax.apply_updates(params, updates), opt_state), loss

            xs = (jnp.arange(NUM_STEPS) % NUM_READY, keys)
            return jax.lax.scan(step, (params, optimizer.init(params)), xs)[1]

        compiled = jax.jit(run, static_argnums=3)
        params = task.init_params(key)
        spent = {True: [], False: []}
        # Alternate, so that load on the machine affects both equally.
        for _ in range(REPEATS + 1):
            for draws, times in spent.items():
                wall, cpu = time.perf_counter(), time.process_time()
                compiled(data, params, key, draws).block_until_ready()
                times.append((time.process_time() - cpu, time.perf_counter() - wall))
        for i, kind in enumerate(("CPU", "wall")):
            # Skip the first call, which includes compilation.
            drawn, ready = (
                1e6 * statistics.median(t[i] for t in spent[draws][1:]) / NUM_STEPS
                for draws in (True, False)
            )
            print(
                f"{name}: {kind} {drawn:.0f} us a step, {ready:.0f} without drawing: "
                f"{(drawn - ready) / drawn:.1%} of a step"
            )


if __name__ == "__main__":
    main()
