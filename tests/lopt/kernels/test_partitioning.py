"""Every CPU device updates its own shard of a tensor, without an all-gather.

The devices exist in a subprocess only: `python -c` calls `report_shards`.
"""

import functools
import json

import jax
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P

from lopt.kernels import cpu, native
from lopt.optimizers.adafactor_mlp import AdafactorMLP
from lopt.optimizers.per_parameter_mlp import PerParameterMLP
from tests.conftest import on_devices

OPTIMIZERS = {"wide": PerParameterMLP(), "narrow": AdafactorMLP()}
SPECS = {
    "rows": ((256, 320), P("x", None)),
    "columns": ((256, 320), P(None, ("x", "y"))),
    "both": ((256, 320), P("y", "x")),
    "neither": ((256, 320), P()),
    "convolution": ((3, 3, 32, 48), P(None, None, "x", "y")),
    "vector": ((1_600,), P("y")),
}
CASES = [f"{name}, {spec}" for name in OPTIMIZERS for spec in SPECS]
CASES += ["wide, rows, blocks", "narrow, both, blocks", "wide, both, explicit"]


def report_case(case):
    """Compare a sharded update with one device and analyze its compiled program."""
    name, spec, *others = case.split(", ")
    if "blocks" in others:
        native.is_available = lambda: False
    optimizer, (shape, spec) = OPTIMIZERS[name], SPECS[spec]
    tx = optimizer.as_optax(optimizer.init_theta(jax.random.key(0)), 10)
    grads, params = (jax.random.normal(jax.random.key(i), shape) for i in range(2))
    expected = jax.jit(tx.update)(grads, tx.init(params), params)
    kind = AxisType.Explicit if "explicit" in others else AxisType.Auto
    mesh = jax.make_mesh((2, 2), ("x", "y"), (kind,) * 2)

    def run():
        place = lambda x: jax.device_put(x, NamedSharding(mesh, spec))
        arguments = place(grads), tx.init(place(params)), place(params)
        compiled = jax.jit(tx.update).lower(*arguments).compile()
        return compiled(*arguments), compiled

    if "explicit" in others:
        with jax.set_mesh(mesh):
            found, compiled = run()
    else:
        found, compiled = run()
    pairs = zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True)
    memory = compiled.memory_analysis()
    assert memory is not None
    text, own = str(compiled.as_text()), found[0].addressable_shards[0].data.nbytes
    return {
        "difference": max(float(np.abs(np.subtract(a, b)).max()) for a, b in pairs),
        "gathers": text.count(" all-gather("),
        "native calls": text.count("lopt_elementwise"),
        "temporary": memory.temp_size_in_bytes / own,
        "is sharded": found[0].sharding.spec == spec,
    }


def report_shards():
    """Print all reports as JSON, with every tensor treated as large, in blocks."""
    cpu._LARGE_TENSOR, cpu._LARGE_BLOCK = 1, 512
    is_available = native.is_available
    report = {"is native": native.build()}
    for case in CASES:
        native.is_available = is_available
        report[case] = report_case(case)
    print(json.dumps(report))


@functools.cache
def reports():
    return on_devices(4, f"from {__name__} import report_shards as r; r()")


@pytest.mark.parametrize("case", CASES)
def test_every_device_does_its_share(case):
    report, is_native = reports()[case], reports()["is native"]
    assert report["difference"] < 1e-6
    assert report["gathers"] == 0
    assert report["native calls"] == (0 if "blocks" in case or not is_native else 2)
    assert report["is sharded"]
    # Factored moments of a vector are as large as the vector.
    assert report["temporary"] < 3 or case == "narrow, vector"
