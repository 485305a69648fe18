"""Benchmark the throughput of meta-training in inner steps per CPU-second.

    python -m benchmarks.inner_steps

The inner task is a 784-128-128-10 MLP on MNIST with batch size 128. The learned
optimizer is a 19-32-32-2 per-parameter MLP, meta-trained by PES with 16 antithetic
pairs, a horizon of 1,000 steps and truncation windows of 4 and 20 steps. One outer
update takes ``2 * pairs * window`` inner steps. MNIST must have been prepared;
`--dataset` selects another dataset. As in `lopt meta-train`, each CPU core is a device
(at most 8 devices, a divisor of 16). With `--num-devices 1`, all cores form one device.
"""

import argparse
import statistics
import time

import jax

from lopt.cli.main import tune_cpu_compiler
from lopt.kernels import native
from lopt.optimizers.per_parameter_mlp import PerParameterMLP
from meta_train.core.inner_training import InnerTraining
from meta_train.core.truncation import Truncation
from meta_train.estimators import PES
from meta_train.outer.outer_optimizer import OuterAdam
from meta_train.outer.trainer import Trainer
from meta_train.runtime import cpu_devices
from tasks.supervised.mlp import MLP


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dataset", default="mnist")
    parser.add_argument("--lengths", type=int, nargs="+", default=[4, 20])
    parser.add_argument("--num-rounds", type=int, default=5)
    parser.add_argument("--num-devices", type=int)
    options = parser.parse_args()
    tune_cpu_compiler()
    native.build()
    task = MLP(options.dataset, batch_size=128, width=128)
    system = InnerTraining(task, PerParameterMLP())
    if options.num_devices is None:
        cpu_devices.split_over_cores([system], 16)
    else:
        jax.config.update("jax_num_cpu_devices", options.num_devices)
    for length in options.lengths:
        estimator = PES(Truncation(length, 1_000), num_pairs=16, std=0.01)
        trainer = Trainer((system,), estimator, OuterAdam(), 1_000)
        data = trainer.load()
        begin = time.perf_counter()
        state, _ = trainer.run(data, trainer.init(data, 0), 1)
        jax.block_until_ready(state)
        compiled = time.perf_counter() - begin
        num_updates = max(1, round(40 / length))
        num_steps = num_updates * estimator.num_inner_steps
        rates = []
        for _ in range(options.num_rounds):
            wall, cpu = time.perf_counter(), time.process_time()
            state, _ = trainer.run(data, state, num_updates)
            jax.block_until_ready(state)
            wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
            rates.append((num_steps / cpu, num_steps / wall))
        per_cpu, per_wall = zip(*rates, strict=True)
        print(
            f"K = {length:2}: {statistics.median(per_cpu):6.1f} inner steps per "
            f"CPU-second ({min(per_cpu):.1f} to {max(per_cpu):.1f}), "
            f"{statistics.median(per_wall):6.1f} per second; compiled in "
            f"{compiled:.0f} s"
        )


if __name__ == "__main__":
    main()
