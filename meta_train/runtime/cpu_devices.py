"""Choice of the number of CPU devices that share a population."""

import os
from collections.abc import Sequence

import jax
import jax.numpy as jnp

from meta_train.core.inner_training import InnerTraining, Splits
from meta_train.devices import sharding
from tasks.base import UnrolledSystem

# Each device holds its own copy of the data and of the compiled program.
_MOST = 8


def split_over_cores(systems: Sequence[UnrolledSystem], population: int) -> None:
    """Use one CPU device per core for large pairs.

    XLA parallelizes little within one CPU program, so that a single device leaves most
    cores idle. Several devices have to synchronize, which takes longer than an update
    of small pairs. The number of devices is the largest divisor of `population` up to
    the number of cores, and at most 8.

    Must be called before JAX initializes its backends. Does nothing if
    `JAX_NUM_CPU_DEVICES` is set or if `jax.distributed` is initialized.

    Args:
        systems: Systems of the run. The states of an antithetic pair must reach
            `sharding.LARGE_MEMBER` bytes in each of them.
        population: Population size of the estimator.
    """
    if "JAX_NUM_CPU_DEVICES" in os.environ or jax.distributed.is_initialized():
        return
    if all(map(_has_large_pairs, systems)):
        most = min(_num_cores(), _MOST, population)
        num = next(n for n in range(most, 0, -1) if population % n == 0)
        jax.config.update("jax_num_cpu_devices", num)


def _has_large_pairs(system: UnrolledSystem) -> bool:
    if not isinstance(system, InnerTraining):
        return False

    def start():
        key = jax.random.key(0)
        theta = system.init_theta(key)
        return system.init_state(theta, Splits((), ()), jnp.int32(1), key)

    return 2 * sharding.num_bytes(jax.eval_shape(start)) >= sharding.LARGE_MEMBER


def _num_cores() -> int:
    """Count the cores available to this process.

    Falls back to all cores of the machine on platforms without CPU affinity.
    """
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity else os.cpu_count() or 1
