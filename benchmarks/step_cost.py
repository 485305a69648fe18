"""Benchmark the update step of learned optimizers relative to Adam.

    python -m benchmarks.step_cost [NAME ...]

Times the compiled `update` on ten million parameters, in five matrices and five
vectors, or forty of each with `--many`. Calls alternate with `optax.adam`, so that load
on the machine affects both equally. Ratios are ratios of medians, for wall time and for
CPU time. The C library is configured not to return freed memory to the system, because
on some machines new pages take longer than a step of Adam. Temporary memory excludes
arguments and results and is given in units of the size of the parameters.
"""

import argparse
import ctypes
import statistics
import time
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import optax

from lopt.base import LearnedOptimizer
from lopt.cli.main import tune_cpu_compiler
from lopt.errors import lookup
from lopt.kernels import native
from lopt.optimizers.adafactor_mlp import AdafactorMLP
from lopt.optimizers.normalized_mlp import NormalizedMLP
from lopt.optimizers.per_parameter_mlp import PerParameterMLP

OPTIMIZERS: dict[str, LearnedOptimizer] = {
    "MLP 2 x 32": PerParameterMLP(),
    "Adafactor-MLP 2 x 4": AdafactorMLP(),
    "normalised MLP 2 x 8": NormalizedMLP(),
    "Adafactor-MLP 2 x 32": AdafactorMLP(width=32),
}
FEW, MANY = [(1024, 2048), (2048,)] * 5, [(512, 512), (512,)] * 40
NUM_ROUNDS = 15


def keep_memory() -> None:
    """Configure the C library to retain freed memory, if it has `mallopt`."""
    if mallopt := getattr(ctypes.CDLL(None), "mallopt", None):
        trim_threshold, mmap_max, arena_max = -1, -4, -8
        mallopt(trim_threshold, 2**31 - 1)
        mallopt(mmap_max, 0)
        mallopt(arena_max, 1)


def prepare(
    transformation: optax.GradientTransformationExtraArgs,
    shapes: Sequence[tuple[int, ...]],
    donate: bool,
) -> Any:
    """Compile an update on random parameters and gradients.

    Args:
        transformation: Optimizer to benchmark.
        shapes: Shapes of the parameters.
        donate: Whether to apply the updates and to donate parameters and state.

    Returns:
        A function that takes one step and returns its wall and CPU seconds; the
        compile time in seconds; the temporary memory over the size of the parameters;
        the optimizer state in bytes per parameter.
    """
    keys = jax.random.split(jax.random.key(0), 2 * len(shapes))

    def draw(keys):
        return [*map(jax.random.normal, keys, shapes)]

    params, grads = draw(keys[::2]), draw(keys[1::2])
    state = transformation.init(params)

    def update(grads, params, state):
        updates, state = transformation.update(
            grads, state, params, value=jnp.float32(1.0)
        )
        # Results follow the order of the arguments, because JAX matches donated
        # buffers of one shape and dtype to results in order.
        return (optax.apply_updates(params, updates) if donate else updates), state

    begin = time.perf_counter()
    jitted = jax.jit(update, donate_argnums=(1, 2) if donate else ())
    compiled: Any = jitted.lower(grads, params, state).compile()
    seconds = time.perf_counter() - begin
    memory = compiled.memory_analysis().temp_size_in_bytes
    num_bytes = sum(x.nbytes for x in jax.tree.leaves(params))
    state_bytes = sum(x.nbytes for x in jax.tree.leaves(state))
    held = [params, state]

    def run() -> tuple[float, float]:
        wall, cpu = time.perf_counter(), time.process_time()
        new = jax.block_until_ready(compiled(grads, *held))
        taken = time.perf_counter() - wall, time.process_time() - cpu
        held[:] = [new[0] if donate else held[0], new[1]]
        return taken

    run()
    return run, seconds, memory / num_bytes, 4 * state_bytes / num_bytes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", default=list(OPTIMIZERS))
    parser.add_argument("--donate", action="store_true", help="update in place")
    parser.add_argument("--many", action="store_true", help="forty matrices")
    options = parser.parse_args()
    job = MANY if options.many else FEW, options.donate
    keep_memory()
    tune_cpu_compiler()
    native.build()
    adam, *_ = prepare(optax.with_extra_args_support(optax.adam(1e-3)), *job)
    for name in options.names:
        optimizer = lookup("optimizer", name, OPTIMIZERS)
        theta = optimizer.init_theta(jax.random.key(0))
        transformation = optimizer.as_optax(theta, 1_000)
        run, seconds, temporary, state = prepare(transformation, *job)
        rounds = [(run(), adam()) for _ in range(NUM_ROUNDS)]
        ours, theirs = (
            [statistics.median(x[i][j] for x in rounds) for j in range(2)]
            for i in range(2)
        )
        print(
            f"{name:22} {1e3 * ours[0]:6.0f} ms, {ours[0] / theirs[0]:5.1f} x Adam's "
            f"{1e3 * theirs[0]:.0f} ms; CPU {ours[1] / theirs[1]:5.1f} x; temporary "
            f"{temporary:.2f} x parameters; state {state:.1f} bytes a parameter; "
            f"compiled in {seconds:.1f} s",
            flush=True,
        )


if __name__ == "__main__":
    main()
