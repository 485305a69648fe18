"""Memory and time estimates of an outer update on a TPU pod, without TPU hardware.

The TPU compiler runs on any host. The actual outer update is compiled ahead of time for
a TPU topology, and the estimates are read from the optimized program.
"""

import importlib.util
import math
import os
import statistics
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh

from lopt.errors import UserError
from meta_train.analysis.hlo_cost import Collective, Work, count_work, find_collectives
from meta_train.devices import sharding
from meta_train.outer.trainer import Trainer
from tasks.base import Data


class Chip(NamedTuple):
    """Performance figures of one device, from the data sheet or measured.

    Attributes:
        memory: Memory capacity in bytes.
        products: Throughput of matrix products in FLOP/s.
        others: Throughput of all other operations in FLOP/s.
        bandwidth: Memory bandwidth in bytes per second.
        link: Bandwidth to other chips in bytes per second.
        start: Launch overhead of an operation in seconds.
    """

    memory: float
    products: float
    others: float
    bandwidth: float
    link: float
    start: float


def _tpu(memory: float, tflops: float, gigabytes: float, gigabits: float) -> Chip:
    # The data sheet gives the bfloat16 peak. Assume a third of it for float32 matrix
    # products, and a fiftieth for all other operations.
    peak = 1e12 * tflops
    link = 1e9 * gigabits / 8
    return Chip(2**30 * memory, peak / 3, peak / 50, 1e9 * gigabytes, link, 1e-6)


# Figures per device as counted by the compiler: half a chip for v2, v3, v4 and tpu7x.
CHIPS = {
    "v2": _tpu(8, 23, 350, 250),
    "v3": _tpu(16, 61, 450, 325),
    "v4": _tpu(16, 137, 614, 1_200),
    "v5e": _tpu(16, 197, 819, 1_600),
    "v5p": _tpu(95, 459, 2_765, 4_800),
    "v6e": _tpu(32, 918, 1_640, 3_584),
    "tpu7x": _tpu(96, 1_153, 3_690, 4_800),
}
TOPOLOGIES = (
    *("v2:2x2", "v3:4x4", "v4:4x4x4", "v4:8x8x8", "v5e:4x4", "v5e:16x16", "v5p:4x4x4"),
    *("v6e:16x16", "tpu7x:4x4x4"),
)
ASSUMPTIONS = {
    "tpu": "matrix products at a third of the chip's bfloat16 peak and other "
    "operations at a fiftieth, or memory at its full bandwidth, whichever takes "
    "longer; 1 us to start an operation; the all-reduce at the bandwidth of the links, "
    "and 1 us a hop",
    "cpu": "matrix products, other operations and memory as fast as they were in a "
    "loop a moment ago, and whichever takes longer; 1 us to start an operation",
}


class Resources(NamedTuple):
    """Resources of one outer update, per device unless noted.

    Attributes:
        num_devices: Number of devices that share the population.
        population: Population size over all devices.
        arguments: Bytes of all arguments: data, outer state and population.
        members: Bytes of this device's shard of the population.
        temporaries: Bytes of temporaries and of outputs that alias no argument.
        work: FLOPs, bytes moved and operations launched.
        collectives: Collectives of the program.
    """

    num_devices: int
    population: int
    arguments: int
    members: int
    temporaries: int
    work: Work
    collectives: list[Collective]

    @property
    def memory(self) -> int:
        """Peak memory in bytes: arguments and temporaries."""
        return self.arguments + self.temporaries

    def seconds(self, chip: Chip, num_devices: int | None = None) -> float:
        """Estimate the time of an outer update with a roofline model.

        The estimate is the maximum of compute time and memory time, plus launch
        overhead and an all-reduce: twice the bytes of all collectives over the link
        bandwidth, and 1 us for each of ``2 sqrt(num_devices)`` hops.

        Args:
            chip: Performance figures of a device.
            num_devices: Number of devices, at the same population per device. Defaults
                to the number that the program was compiled for.
        """
        num, work = num_devices or self.num_devices, self.work
        computing = work.products / chip.products + work.others / chip.others
        moving = work.moved / chip.bandwidth
        starting = work.operations * chip.start
        exchanged = sum(c.num_bytes for c in self.collectives) if num > 1 else 0
        talking = 2 * exchanged / chip.link + 1e-6 * 2 * math.sqrt(num) * (num > 1)
        return max(computing, moving) + starting + talking

    def largest_population(self, chip: Chip) -> int:
        """Compute the largest population over all devices that fits into memory.

        Data and outer state are constant per device. Population and temporaries are
        assumed to grow linearly with the members per device.
        """
        own = self.population // self.num_devices
        each = (self.members + self.temporaries) / own
        room = chip.memory - (self.arguments - self.members)
        return max(int(room / each), 0) * self.num_devices


def estimate_resources(
    trainer: Trainer, data: tuple[Data, ...], devices: Sequence[Any]
) -> Resources:
    """Compile the outer update of `trainer` and read its resources.

    Args:
        trainer: Trainer whose population is sharded over `devices`.
        data: Data of each system, as from `trainer.load`.
        devices: Devices to compile for. They need not be attached to this host.
    """
    num, population = len(devices), trainer.estimator.population_size
    sharding.check(population, num)
    shapes = trainer.shapes(data)
    mesh = Mesh(np.array(devices), (sharding.AXIS,), axis_types=(AxisType.Auto,))
    everywhere = sharding.replicated(mesh)

    def like(x, where):
        return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=where)

    state = jax.tree.map(like, shapes, shapes.shardings(mesh))
    inputs = jax.tree.map(lambda x: like(x, everywhere), data)
    count = jax.ShapeDtypeStruct((), jnp.int32, sharding=everywhere)
    with jax.set_mesh(mesh):
        compiled = Trainer.compiled_run.lower(trainer, inputs, state, count).compile()
    memory: Any = compiled.memory_analysis()
    text = compiled.as_text() or ""

    def num_bytes(x):
        return x.size * x.dtype.itemsize

    members = sum(map(num_bytes, jax.tree.leaves(shapes.populations)))
    fresh = memory.output_size_in_bytes - memory.alias_size_in_bytes
    return Resources(
        num_devices=num,
        population=population,
        arguments=memory.argument_size_in_bytes,
        members=members // num,
        temporaries=memory.temp_size_in_bytes + max(fresh, 0),
        work=count_work(text),
        collectives=find_collectives(text),
    )


def tpu_devices(topology: str) -> Sequence[Any]:
    """Create the abstract devices of a TPU topology, for ahead-of-time compilation.

    Args:
        topology: Generation and shape, such as ``v5e:4x4``.

    Raises:
        UserError: If the topology is unknown or `libtpu` is not installed.
    """
    generation = topology.partition(":")[0]
    if generation not in CHIPS:
        raise UserError(
            f"--topology must be one like {', '.join(TOPOLOGIES)}; got {topology!r}. "
            "Try v5e:4x4."
        )
    # Without these variables, libtpu searches for attached chips and logs many
    # warnings.
    for name, value in {
        "TPU_SKIP_MDS_QUERY": "1",
        "TPU_ACCELERATOR_TYPE": "v5litepod-4",
        "TPU_WORKER_HOSTNAMES": "localhost",
        "TPU_MIN_LOG_LEVEL": "3",
    }.items():
        os.environ.setdefault(name, value)
    if importlib.util.find_spec("libtpu") is None:
        raise UserError(
            "`lopt plan` for a TPU needs its compiler, the package libtpu; it is not "
            'installed. Try pip install "lopt[tpu]", or --platform cpu.'
        )
    from jax.experimental import topologies

    try:
        found = topologies.get_topology_desc(platform="tpu", topology_name=topology)
    except Exception as error:  # The compiler raises exceptions of various types.
        raise UserError(
            f"--topology must be one like {', '.join(TOPOLOGIES)}; got {topology!r} "
            f"({str(error).splitlines()[0][:120]})."
        ) from error
    return found.devices


def local_chip(num_bytes: int) -> Chip:
    """Benchmark a device of this machine, in one or two seconds.

    Args:
        num_bytes: Working set of the program in bytes. The bandwidth is measured at
            this size (clamped to between 256 KiB and 64 MiB), since a small working
            set fits into the cache.
    """
    size, num_steps = 512, 20
    product = _seconds(lambda x: x @ x / size, jnp.ones((size, size)))

    def loop(x):
        return jax.lax.fori_loop(0, num_steps, lambda _, x: 0.9 * x + 0.1, x)

    vector = jnp.ones(int(np.clip(num_bytes // 4, 1 << 16, 1 << 24)))
    small = jnp.ones(1 << 18)
    moving = _seconds(loop, vector) / num_steps
    computing = _seconds(loop, small) / num_steps
    pages, page = os.sysconf("SC_PHYS_PAGES"), os.sysconf("SC_PAGE_SIZE")
    return Chip(
        memory=pages * page / jax.local_device_count(),
        products=2 * size**3 / product,
        others=2 * small.size / computing,
        bandwidth=2 * vector.nbytes / moving,
        link=2 * vector.nbytes / moving,
        start=1e-6,
    )


def measure(trainer: Trainer, data: tuple[Data, ...], seconds: float = 3.0) -> float:
    """Measure the median time of an outer update on this machine, in seconds.

    Args:
        trainer: Trainer to run, from a fresh state.
        data: Data of each system, as from `trainer.load`.
        seconds: Duration of the measurement, of at least three updates.
    """
    state = trainer.init(data, 0)
    state, metrics = trainer.run(data, state, 1)
    jax.block_until_ready(metrics)
    times, end = [], time.monotonic() + seconds
    while len(times) < 3 or time.monotonic() < end:
        begin = time.perf_counter()
        state, metrics = trainer.run(data, state, 1)
        jax.block_until_ready(metrics)
        times.append(time.perf_counter() - begin)
    return statistics.median(times)


def _seconds(function: Any, *arguments: jax.Array) -> float:
    compiled = jax.jit(function)
    jax.block_until_ready(compiled(*arguments))
    times = []
    for _ in range(5):
        begin = time.perf_counter()
        jax.block_until_ready(compiled(*arguments))
        times.append(time.perf_counter() - begin)
    return min(times)
