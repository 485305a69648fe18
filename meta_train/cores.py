"""How the cores of a CPU share a population: as one device, or as one each."""

import os
from collections.abc import Sequence

import jax
import jax.numpy as jnp

from meta_train import sharding
from meta_train.inner_training import InnerTraining, Splits
from tasks.base import UnrolledSystem

_MOST = 8  # each has the data, and a program of its own


def share(systems: Sequence[UnrolledSystem], population: int) -> None:
    """Lets every core be a device where that pays: where pairs are large.

    A program does little in parallel, so that cores as one device are mostly idle;
    but devices wait for each other, which takes longer than updates of small pairs.
    This must come before jax starts. `JAX_NUM_CPU_DEVICES` decides if it is set.
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
    """Returns how many cores this process may use, where the system can tell."""
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity else os.cpu_count() or 1
