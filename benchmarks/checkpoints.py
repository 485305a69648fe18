"""Benchmark the cost of checkpoints: ``python -m benchmarks.checkpoints``."""

import statistics
import tempfile
import time
from pathlib import Path

import jax

from lopt.cli.main import tune_cpu_compiler
from lopt.optimizers.per_parameter_mlp import PerParameterMLP
from meta_train.core.inner_training import InnerTraining
from meta_train.core.truncation import Truncation
from meta_train.estimators import PES
from meta_train.outer.outer_optimizer import OuterAdam
from meta_train.outer.trainer import Trainer
from meta_train.runtime.checkpoint import Checkpoints
from tasks.supervised.mlp import MLP

NUM_SAVES, SECONDS_BETWEEN = 5, 60.0


def main() -> None:
    """Print how long a save blocks the training loop, and its total CPU time.

    The CPU time includes the background write. It is also given as a fraction of a run
    that saves every minute.
    """
    tune_cpu_compiler()
    trainer = Trainer(
        systems=(InnerTraining(MLP(width=256), PerParameterMLP(width=4)),),
        estimator=PES(Truncation(length=1, horizon=4), num_pairs=16),
        outer_optimizer=OuterAdam(),
        num_outer_steps=NUM_SAVES,
    )
    data = trainer.load()
    state = trainer.init(data, 0)
    size = sum(x.nbytes for x in jax.tree.leaves(state))
    blocked, behind = [], []
    with tempfile.TemporaryDirectory() as folder:
        checkpoints = Checkpoints(Path(folder) / "checkpoints", print)
        for _ in range(NUM_SAVES):
            state, _ = trainer.run(data, state, 1)
            jax.block_until_ready(state)
            wall, cpu = time.perf_counter(), time.process_time()
            checkpoints.save(state)
            blocked.append(time.perf_counter() - wall)
            checkpoints.wait()
            behind.append(time.process_time() - cpu)
        checkpoints.close()
    times = "  ".join(f"{1e3 * t:.0f}" for t in blocked)
    work = statistics.median(behind)
    print(f"state: {size / 1e6:.0f} MB")
    print(f"a save blocks the loop for (ms): {times}")
    print(f"CPU time of a save, most of it in the background: {work:.2f} s")
    print(f"share of a run that saves every minute: {work / SECONDS_BETWEEN:.1%}")


if __name__ == "__main__":
    main()
