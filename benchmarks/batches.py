"""What drawing batches costs: ``python -m benchmarks.batches``."""

import time

import jax
import optax

from tasks.base import Task
from tasks.zoo import ZOO

NUM_STEPS, REPEATS = 200, 7


def main() -> None:
    """Prints CPU and wall time of steps with batches drawn and with one batch kept."""
    for name in ("digits-mlp", "mnist-mlp"):
        task = ZOO[name].problem
        assert isinstance(task, Task)
        data, key = task.load(), jax.random.key(0)
        optimizer = optax.adam(1e-3)

        def run(data, params, key, draws, task=task, optimizer=optimizer):
            kept = task.sample_batch(data, key)

            def step(carry, key):
                params, opt_state = carry
                batch = task.sample_batch(data, key) if draws else kept
                loss, grads = jax.value_and_grad(task.loss)(params, batch)
                updates, opt_state = optimizer.update(grads, opt_state)
                return (optax.apply_updates(params, updates), opt_state), loss

            keys = jax.random.split(key, NUM_STEPS)
            return jax.lax.scan(step, (params, optimizer.init(params)), keys)[1]

        compiled = jax.jit(run, static_argnums=3)
        params = task.init_params(key)
        best = {}
        for draws in (True, False):
            compiled(data, params, key, draws).block_until_ready()
        for _ in range(REPEATS):  # in turns, so that both see the same machine
            for draws in (True, False):
                wall, cpu = time.perf_counter(), time.process_time()
                compiled(data, params, key, draws).block_until_ready()
                spent = (time.process_time() - cpu, time.perf_counter() - wall)
                best[draws] = min(best.get(draws, spent), spent)
        for i, kind in enumerate(("CPU", "wall")):
            drawn, kept = (1e6 * best[d][i] / NUM_STEPS for d in (True, False))
            print(
                f"{name}: {kind} {drawn:.0f} us a step, {kept:.0f} without drawing: "
                f"{(drawn - kept) / drawn:.1%} of a step"
            )


if __name__ == "__main__":
    main()
