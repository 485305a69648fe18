"""Native code is compiled if and only if an update would call it."""

import jax
import jax.numpy as jnp
import pytest

from lopt.kernels import native
from lopt.kernels.prepare import prepare
from lopt.optimizers.adafactor_mlp import AdafactorMLP
from lopt.optimizers.classical import LearnedSGD
from lopt.optimizers.learned_muon import LearnedMuon
from lopt.optimizers.per_parameter_mlp import PerParameterMLP

SMALL = {"w": jax.ShapeDtypeStruct((4, 3), jnp.float32)}
LARGE = {"w": jax.ShapeDtypeStruct((512, 256), jnp.float32)}


@pytest.fixture(autouse=True)
def _enabled():
    yield
    native.enable(True)


@pytest.fixture
def built(monkeypatch):
    """Record calls of `build`, as on a machine with a compiler and no library."""
    calls = []
    monkeypatch.setattr(native, "is_built", lambda: False)
    monkeypatch.setattr(native, "build", lambda: bool(calls.append("build")) or True)
    return calls


@pytest.mark.parametrize(
    ("optimizer", "params", "expected"),
    [
        (PerParameterMLP(), SMALL, "native"),
        (PerParameterMLP(width=8), SMALL, "xla"),
        (PerParameterMLP(width=8), LARGE, "native"),
        (AdafactorMLP(), LARGE, "native"),
        (LearnedMuon(), LARGE, "xla"),
    ],
)
def test_it_is_compiled_where_an_update_uses_it(built, optimizer, params, expected):
    lines = []
    assert prepare("auto", [(optimizer, params)], lines.append) == expected
    assert built == (["build"] if expected == "native" else [])
    assert len(lines) == len(built)


def test_an_optimizer_with_one_setting_per_tensor_is_accepted(built):
    assert prepare("auto", [(LearnedSGD(num_blocks=1), SMALL)], print) == "xla"
    assert built == []


def test_xla_is_used_on_request(built):
    assert prepare("xla", [(PerParameterMLP(), SMALL)], print) == "xla"
    assert built == []
    assert not native.is_available()


def test_a_run_without_a_compiler_falls_back_aloud(monkeypatch):
    monkeypatch.setattr(native, "is_built", lambda: True)
    monkeypatch.setattr(native, "build", lambda: False)
    lines = []
    assert prepare("native", [(PerParameterMLP(), SMALL)], lines.append) == "xla"
    assert "falling back to XLA" in lines[0]
    assert prepare("auto", [(PerParameterMLP(), SMALL)], lines.append) == "xla"
    assert len(lines) == 1
