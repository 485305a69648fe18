"""Benchmark one update on a deep transformer against Adam and Muon.

    python -m benchmarks.transformer                  # 12 layers, 198 tensors
    python -m benchmarks.transformer --num-steps 100  # also train it

Compile time includes tracing; the compilation cache is disabled. Wall and CPU times are
the minimum over several calls in one process. CPU time is summed over threads.
Temporary memory is XLA's estimate.
"""

import argparse
import time
from typing import Any

import jax
import jax.numpy as jnp
import optax
from optax import contrib

import lopt
from tasks.supervised.language import TransformerLM

NUM_CALLS = 7


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--depth", type=int, default=12)
    parser.add_argument("--width", type=int, default=288)
    parser.add_argument("--optimizers", nargs="*", default=["general-1"])
    parser.add_argument("--num-steps", type=int, default=0, help="train this long")
    options = parser.parse_args()
    jax.config.update("jax_enable_compilation_cache", False)
    task = TransformerLM(
        depth=options.depth, width=options.width, num_heads=4, length=64, batch_size=4
    )
    params = jax.jit(task.init_params)(jax.random.key(0))
    leaves = jax.tree.leaves(params)
    size = sum(x.size for x in leaves)
    print(f"{len(leaves)} tensors, {size / 1e6:.1f} million parameters")
    horizon = options.num_steps or 100
    optimizers = {"adam": optax.adam(1e-3), "muon": contrib.muon(1e-2)}
    optimizers |= {name: _make(name, horizon) for name in options.optimizers}
    reference = None
    print(
        f"{'':20}{'compile':>10}{'step':>10}{'CPU':>10}{'temporary':>14}{'state':>12}"
    )
    for name, tx in optimizers.items():
        costs = _measure(tx, params)
        reference = costs if name == "muon" else reference
        compile_s, step_s, cpu_s, temporary, state = costs
        print(
            f"{name:20}{compile_s:8.1f} s{1e3 * step_s:7.1f} ms{1e3 * cpu_s:7.0f} ms"
            f"{temporary / size:7.1f} B/param{state / size:6.1f} B/param",
            flush=True,
        )
        if reference is not None and reference is not costs:
            ratios = [a / b for a, b in zip(costs[:3], reference[:3], strict=True)]
            print(
                f"{'  over muon':20}{ratios[0]:10.2f}{ratios[1]:10.2f}{ratios[2]:10.2f}"
            )
    if options.num_steps:
        for name, tx in optimizers.items():
            _train(name, tx, task, params, options.num_steps)


def _make(name: str, num_steps: int) -> optax.GradientTransformationExtraArgs:
    """Load a shipped optimizer, or create an untrained one by its class name."""
    if name in lopt.list_pretrained():
        return lopt.load(name, num_steps)
    optimizer = getattr(lopt, name)()
    return optimizer.as_optax(optimizer.init_theta(jax.random.key(0)), num_steps)


def _measure(tx, params) -> tuple[float, float, float, float, float]:
    """Compile and time `tx.update`.

    Returns:
        Compile time, wall time and CPU time in seconds; size of the temporaries and of
        the optimizer state in bytes.
    """
    state = tx.init(params)
    grads = jax.tree.map(lambda x: 0.1 * x + 0.01, params)
    start = time.perf_counter()
    compiled = jax.jit(tx.update).lower(grads, state, params).compile()
    compile_s = time.perf_counter() - start
    jax.block_until_ready(compiled(grads, state, params))
    times = []
    for _ in range(NUM_CALLS):
        start, cpu = time.perf_counter(), time.process_time()
        jax.block_until_ready(compiled(grads, state, params))
        times.append((time.perf_counter() - start, time.process_time() - cpu))
    memory: Any = compiled.memory_analysis()
    num_bytes = sum(x.nbytes for x in jax.tree.leaves(state))
    step_s, cpu_s = (min(column) for column in zip(*times, strict=True))
    return compile_s, step_s, cpu_s, memory.temp_size_in_bytes, num_bytes


def _train(name: str, tx, task: TransformerLM, params, num_steps: int) -> None:
    """Train for `num_steps` and print the first loss and the mean of the last five."""
    data, state = task.load(), tx.init(params)

    @jax.jit
    def step(params, state, key):
        value, grads = jax.value_and_grad(task.loss)(
            params, task.sample_batch(data, key)
        )
        updates, state = tx.update(grads, state, params)
        return optax.apply_updates(params, updates), state, value

    losses, start = [], time.perf_counter()
    for i in range(num_steps):
        params, state, value = step(
            params, state, jax.random.fold_in(jax.random.key(1), i)
        )
        losses.append(float(value))
    finite = all(bool(jnp.isfinite(x).all()) for x in jax.tree.leaves(params))
    last = sum(losses[-5:]) / len(losses[-5:])
    print(
        f"{name:20}loss {losses[0]:.3f} -> {last:.3f} in {num_steps} steps, "
        f"{time.perf_counter() - start:.0f} s; parameters finite: {finite}",
        flush=True,
    )


if __name__ == "__main__":
    main()
