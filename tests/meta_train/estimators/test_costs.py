"""FLOPs and memory of compiled estimators scale as in the table of the paper."""

import jax
import numpy as np
import pytest

from meta_train.analysis.diagnostics import Probe
from meta_train.analysis.scaling import Sized, exponents
from meta_train.core.truncation import Truncation
from meta_train.estimators import PES

# Exponents of (FLOPs, bytes) in window length, horizon and population size.
EXPECTED = {
    "PES": {"k": (1, 0), "t": (0, 0), "n": (1, 1)},
    "NoiseReuseES": {"k": (1, 0), "t": (0, 0), "n": (1, 1)},
    "TruncatedES": {"k": (1, 0), "t": (0, 0), "n": (1, 1)},
    "FullES": {"k": (0, 0), "t": (1, 0), "n": (1, 1)},
    "TruncatedBackprop": {"k": (1, 1), "t": (0, 0), "n": (1, 1)},
    "FullBackprop": {"k": (0, 0), "t": (1, 0.5), "n": (1, 1)},
    "Reparameterization": {"k": (0, 0), "t": (1, 0.5), "n": (1, 1)},
    "UORO": {"k": (1, 0), "t": (0, 0), "n": (1, 1)},
    "RTRL": {"k": (1, 0), "t": (0, 0), "n": (1, 1)},
}
RANGES = {"k": (16, 64), "t": (256, 4096), "n": (8, 32)}


FAST = {"PES", "FullES", "TruncatedBackprop", "FullBackprop", "RTRL"}


@pytest.mark.parametrize(
    ("name", "axis"),
    [
        pytest.param(name, axis, marks=() if name in FAST else pytest.mark.slow)
        for name, powers in EXPECTED.items()
        for axis in powers
    ],
)
def test_costs_grow_as_they_should_with(name, axis):
    sizes = {"p": 32, "s": 8192} if name != "RTRL" else {"p": 16, "s": 512}
    found = exponents(name, axis, *RANGES[axis], **sizes)
    np.testing.assert_allclose(found, EXPECTED[name][axis], atol=0.2)


@pytest.mark.parametrize("axis", ["s", "p"])
def test_the_matrix_of_rtrl_is_state_by_parameters(axis):
    sizes = {"s": 256, "p": 32} if axis == "s" else {"s": 1024, "p": 64}
    low = sizes.pop(axis)
    found = exponents("RTRL", axis, low, 4 * low, **sizes)
    np.testing.assert_allclose(found, (1, 1), atol=0.2)


@pytest.mark.parametrize(("s", "p"), [(65_536, 1_024), (65_536, 4_096)])
def test_a_particle_of_pes_takes_its_state_and_its_noise(s, p):
    num_pairs = 16
    system = Sized(s, p)
    theta = system.init_theta(jax.random.key(0))
    pes = PES(Truncation(length=8, horizon=64), num_pairs)
    cost = Probe(pes, system, (), theta).cost
    floats = cost.bytes / 4 / (2 * num_pairs)
    assert floats < 1.3 * (s + p)


@pytest.mark.parametrize("name", ["PES", "UORO", "TruncatedBackprop"])
@pytest.mark.parametrize("axis", ["s", "p"])
def test_costs_grow_with_the_larger_of_state_and_parameters(name, axis):
    other = {"s": "p", "p": "s"}[axis]
    found = exponents(name, axis, 16_384, 65_536, **{other: 16})
    np.testing.assert_allclose(found, (1, 1), atol=0.2)
