"""What a run needs on a pod, from the program that the pod's own compiler makes.

The compiler for TPUs runs anywhere: the real step is compiled for a topology without
a chip of it, and read.
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
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from lopt.errors import UserError
from meta_train import sharding
from meta_train.program import Collective, Work, count_work, find_collectives
from meta_train.trainer import Trainer
from tasks.base import Data


class Chip(NamedTuple):
    """What one device can do, by its maker's data sheet or by measurement.

    Attributes:
        memory: Bytes.
        products: FLOP/s of matrix products.
        others: FLOP/s of everything else.
        bandwidth: Bytes per second to and from memory.
        link: Bytes per second to other chips.
        start: Seconds to start an operation.
    """

    memory: float
    products: float
    others: float
    bandwidth: float
    link: float
    start: float


def _tpu(memory: float, tflops: float, gigabytes: float, gigabits: float) -> Chip:
    # Of the peak of the data sheet, which is for bfloat16: a third in float32, and a
    # fiftieth for what is no matrix product.
    peak = 1e12 * tflops
    link = 1e9 * gigabits / 8
    return Chip(2**30 * memory, peak / 3, peak / 50, 1e9 * gigabytes, link, 1e-6)


# Of one device as the compiler counts them: half a chip of v2, v3, v4 and tpu7x.
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


class Need(NamedTuple):
    """What one outer update needs of each device.

    Attributes:
        num_devices: That share the population.
        population: Members, over all devices.
        arguments: Bytes of data, theta and population.
        members: Bytes of the population alone.
        temporaries: Bytes besides, while it runs.
        work: What is computed.
        collectives: What is exchanged.
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
        """All bytes."""
        return self.arguments + self.temporaries

    def seconds(self, chip: Chip, num_devices: int | None = None) -> float:
        """Estimates the time of an outer update, on more or fewer devices too."""
        num, work = num_devices or self.num_devices, self.work
        computing = work.products / chip.products + work.others / chip.others
        moving = work.moved / chip.bandwidth
        starting = work.operations * chip.start
        exchanged = sum(c.num_bytes for c in self.collectives) if num > 1 else 0
        talking = 2 * exchanged / chip.link + 1e-6 * 2 * math.sqrt(num) * (num > 1)
        return max(computing, moving) + starting + talking

    def largest_population(self, chip: Chip) -> int:
        """Returns how many members fit, data and theta being there anyway."""
        own = self.population // self.num_devices
        each = (self.members + self.temporaries) / own
        room = chip.memory - (self.arguments - self.members)
        return max(int(room / each), 0) * self.num_devices


def need(trainer: Trainer, data: tuple[Data, ...], devices: Sequence[Any]) -> Need:
    """Compiles the step of `trainer` for `devices`, which need not be here."""
    num, population = len(devices), trainer.estimator.population_size
    sharding.check(population, num)
    shapes = trainer.shapes(data)
    mesh = Mesh(np.array(devices), (sharding.AXIS,), axis_types=(AxisType.Auto,))
    everywhere = NamedSharding(mesh, PartitionSpec())
    like = lambda x, where: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=where)
    state = jax.tree.map(like, shapes, sharding.shardings(shapes, mesh))
    inputs = jax.tree.map(lambda x: like(x, everywhere), data)
    count = jax.ShapeDtypeStruct((), jnp.int32, sharding=everywhere)
    with jax.set_mesh(mesh):
        compiled = Trainer.compiled_run.lower(trainer, inputs, state, count).compile()
    memory: Any = compiled.memory_analysis()
    text = compiled.as_text() or ""
    num_bytes = lambda x: x.size * x.dtype.itemsize
    members = sum(map(num_bytes, jax.tree.leaves(shapes.populations)))
    fresh = memory.output_size_in_bytes - memory.alias_size_in_bytes
    return Need(
        num_devices=num,
        population=population,
        arguments=memory.argument_size_in_bytes,
        members=members // num,
        temporaries=memory.temp_size_in_bytes + max(fresh, 0),
        work=count_work(text),
        collectives=find_collectives(text),
    )


def tpu_devices(topology: str) -> Sequence[Any]:
    """Returns the devices of a TPU topology, none of which is here."""
    generation = topology.partition(":")[0]
    if generation not in CHIPS:
        raise UserError(
            f"--topology must be one like {', '.join(TOPOLOGIES)}; got {topology!r}. "
            "Try v5e:4x4."
        )
    # It looks for the chips that it is part of, and complains at length.
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
    except Exception as error:  # of whatever kind the compiler raises
        raise UserError(
            f"--topology must be one like {', '.join(TOPOLOGIES)}; got {topology!r} "
            f"({str(error).splitlines()[0][:120]})."
        ) from error
    return found.devices


def local_chip(num_bytes: int) -> Chip:
    """Measures what a device of this machine can do, in a second or two.

    Args:
        num_bytes: That are in use, as memory is faster where less of it is.
    """
    size, num_steps = 512, 20
    product = _seconds(lambda x: x @ x / size, jnp.ones((size, size)))
    loop = lambda x: jax.lax.fori_loop(0, num_steps, lambda _, x: 0.9 * x + 0.1, x)
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
    """Returns the seconds that an outer update takes here."""
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
