"""Incompatible systems and estimators are refused early, with an alternative."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lopt.errors import UserError
from lopt.optimizers.per_parameter_mlp import PerParameterMLP
from meta_train.core.inner_training import InnerTraining
from meta_train.core.objectives import FinalLoss
from meta_train.core.truncation import Truncation
from meta_train.estimators import ESTIMATORS, RTRL, FullBackprop, PESAnalytic
from meta_train.outer.compatibility import Compatibility
from tasks.supervised.mlp import MLP
from tasks.systems.influence_balancing import InfluenceBalancing

WINDOWS = Truncation(length=5, horizon=20)
THETA = jnp.asarray(0.5)


@dataclass(frozen=True)
class Simulator(InfluenceBalancing):
    """System whose loss comes from a host callback."""

    def step(self, theta, state, x):
        state, loss = InfluenceBalancing.step(self, theta, state, x)
        shape = jax.ShapeDtypeStruct((), jnp.float32)
        outside = lambda loss: np.asarray(loss, np.float32)
        return state, jax.pure_callback(outside, shape, loss, vmap_method="expand_dims")


@dataclass(frozen=True)
class Accuracy(InfluenceBalancing):
    """System whose loss is piecewise constant."""

    def step(self, theta, state, x):
        state, loss = InfluenceBalancing.step(self, theta, state, x)
        return state, (loss > 0.5).astype(jnp.float32)


@dataclass(frozen=True)
class MetaLearnedStart(InfluenceBalancing):
    """System in which theta affects only the initial state."""

    def init_state(self, theta, data, horizon, key):
        return theta * jnp.ones(self.dim)

    def step(self, theta, state, x):
        return InfluenceBalancing.step(self, jnp.zeros(()), state, x)


NEEDY = [name for name, kind in ESTIMATORS.items() if kind.derivatives != "none"]
CONTENT = [name for name in ESTIMATORS if name not in NEEDY]


@pytest.mark.parametrize("system", [Simulator(), Accuracy(), FinalLoss(Accuracy())])
@pytest.mark.parametrize("name", NEEDY)
def test_systems_without_derivatives_are_not_differentiated(name, system):
    with pytest.raises(UserError, match=r"--estimator PES, which carries \d") as raised:
        Compatibility(system, (), THETA).check(ESTIMATORS[name](WINDOWS))
    message = str(raised.value)
    assert message.startswith(f"{name} differentiates the unroll")
    reason = "callback" if isinstance(system, Simulator) else "piecewise constant"
    assert reason in message
    assert "UORO" not in message.split("Try")[-1]


@pytest.mark.parametrize("system", [Simulator(), Accuracy(), FinalLoss(Accuracy())])
@pytest.mark.parametrize("name", CONTENT)
def test_evolution_strategies_need_no_derivatives(name, system, key):
    estimator = ESTIMATORS[name](WINDOWS, num_pairs=64, std=0.3)
    Compatibility(system, (), THETA).check(estimator)
    state = estimator.init(system, (), THETA, key)
    update = jax.jit(lambda s, k: estimator.update(system, (), THETA, s, k))
    norms = []
    for i in range(8):
        estimate, state = update(state, jax.random.fold_in(key, i))
        assert jnp.isfinite(estimate.grad)
        norms.append(float(abs(estimate.grad)))
    assert max(norms) > 0


@pytest.mark.parametrize("system", [InfluenceBalancing(), MetaLearnedStart()])
@pytest.mark.parametrize("name", ESTIMATORS)
def test_compatible_systems_are_accepted(name, system):
    Compatibility(system, (), THETA).check(ESTIMATORS[name](WINDOWS))


def test_a_jacobian_that_does_not_fit_is_refused_with_its_size():
    system = InnerTraining(MLP(width=512), PerParameterMLP())
    data = system.load()
    theta = jax.eval_shape(system.init_theta, jax.random.key(0))
    with pytest.raises(UserError, match=r"carries \d+ GB .*64 times") as raised:
        Compatibility(system, data, theta).check(RTRL(WINDOWS))
    assert "--estimator UORO, which carries" in str(raised.value)


def test_exceptions_of_a_system_are_not_wrapped():
    class Broken(InfluenceBalancing):
        def step(self, theta, state, x):
            raise ZeroDivisionError("of the user")

    with pytest.raises(ZeroDivisionError, match="of the user"):
        Compatibility(Broken(), (), THETA).check(PESAnalytic(WINDOWS))


def test_loops_of_unknown_length_cannot_be_backpropagated_through():
    class Loop(InfluenceBalancing):
        def step(self, theta, state, x):
            shrink = lambda s: 0.5 * s
            state = jax.lax.while_loop(lambda s: s[0] > 1, shrink, state + theta)
            return state, state[0]

    Compatibility(Loop(), (), THETA).check(RTRL(WINDOWS))
    with pytest.raises(UserError, match=r"Reverse-mode"):
        Compatibility(Loop(), (), THETA).check(FullBackprop(WINDOWS))
