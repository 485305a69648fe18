"""The outer loop on the device: estimate, update, repeat, all in one jit."""

import functools
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import struct
from jaxtyping import Array, Float, Int, PRNGKeyArray

from meta_train import sharding
from meta_train.compatibility import Compatibility
from meta_train.estimators.base import GradientEstimator
from meta_train.outer_optimizer import OuterAdam
from meta_train.unroll import unroll
from tasks.base import Data, State, Theta, UnrolledSystem


class OuterState(struct.PyTreeNode):
    """Everything a checkpoint holds; a run resumes from it exactly.

    Attributes:
        theta: The outer parameters.
        opt_state: The outer optimizer's state.
        populations: The estimator's state for each system.
        step: Outer updates taken.
        key: The run's key; folding the step into it gives the update's randomness.
    """

    theta: Theta
    opt_state: optax.OptState
    populations: tuple[State, ...]
    step: Int[Array, "..."]
    key: PRNGKeyArray


@dataclass(frozen=True)
class Trainer:
    """Trains one theta on several systems at once: their gradients are averaged."""

    systems: tuple[UnrolledSystem, ...]
    estimator: GradientEstimator
    outer_optimizer: OuterAdam
    num_outer_steps: int

    def load(self) -> tuple[Data, ...]:
        """Returns the data of each system, on every device."""
        return sharding.replicate(tuple(system.load() for system in self.systems))

    def check(self, data: tuple[Data, ...]) -> None:
        """Raises unless the estimator can work on every system; costs nothing."""
        for system, d in zip(self.systems, data, strict=True):
            theta = jax.eval_shape(system.init_theta, jax.random.key(0))
            Compatibility(system, d, theta).check(self.estimator)

    def init(self, data: tuple[Data, ...], seed: int) -> OuterState:
        """Returns the state before the first outer update."""
        key = sharding.replicate(jax.random.key(seed))
        with jax.set_mesh(sharding.mesh()):
            return sharding.place(self._init(data, key))

    def shapes(self, data: tuple[Data, ...]) -> OuterState:
        """Returns the shapes and dtypes of the state, at no cost."""
        return jax.eval_shape(lambda: self._init(data, jax.random.key(0)))

    @functools.partial(jax.jit, static_argnums=0)
    def _init(self, data: tuple[Data, ...], key: PRNGKeyArray) -> OuterState:
        # The last key that `fold_in` can give; updates count up from the first.
        key_theta, key_init = jax.random.split(jax.random.fold_in(key, 2**32 - 1))
        theta = self.systems[0].init_theta(key_theta)
        populations = tuple(
            self.estimator.init(system, d, theta, jax.random.fold_in(key_init, i))
            for i, (system, d) in enumerate(zip(self.systems, data, strict=True))
        )
        return OuterState(
            theta=theta,
            opt_state=self._optimizer.init(theta),
            populations=sharding.constrain(populations),
            step=jnp.zeros((), jnp.int32),
            key=key,
        )

    def run(
        self, data: tuple[Data, ...], state: OuterState, num_steps: int
    ) -> tuple[OuterState, dict[str, Float[Array, ""]]]:
        """Takes `num_steps` outer updates; returns the state and the metrics' means.

        The number is traced: any number of updates runs in the one compiled program.
        """
        num = sharding.replicate(np.asarray(num_steps, np.int32))
        with jax.set_mesh(sharding.mesh()):
            return self.compiled_run(data, state, num)

    @functools.partial(jax.jit, static_argnums=0, donate_argnums=2)
    def compiled_run(
        self, data: tuple[Data, ...], state: OuterState, num_steps: Int[Array, ""]
    ) -> tuple[OuterState, dict[str, Float[Array, ""]]]:
        """Does what `run` does, on the devices of the mesh that is set."""

        def body(_, carry):
            state, totals = carry
            state, metrics = self._update(data, state)
            return state, totals + jnp.stack([metrics[name] for name in names])

        names = sorted(jax.eval_shape(self._update, data, state)[1])
        totals = jnp.zeros(len(names), jnp.float32)
        state, totals = jax.lax.fori_loop(0, num_steps, body, (state, totals))
        return state, dict(zip(names, totals / num_steps, strict=True))

    def _update(
        self, data: tuple[Data, ...], state: OuterState
    ) -> tuple[OuterState, dict[str, Float[Array, ""]]]:
        first = state.step * len(self.systems)
        estimates, populations = zip(
            *[
                self.estimator.update(
                    system,
                    d,
                    state.theta,
                    population,
                    jax.random.fold_in(state.key, first + i),
                )
                for i, (system, d, population) in enumerate(
                    zip(self.systems, data, state.populations, strict=True)
                )
            ],
            strict=True,
        )
        mean = jax.tree.map(lambda *x: sum(x) / len(x), *estimates)
        metrics = {
            "loss": mean.loss,
            "grad_norm": optax.tree.norm(mean.grad),
            **mean.diagnostics,
        }
        if len(estimates) > 1:
            for i, estimate in enumerate(estimates):
                parts = {"loss": estimate.loss, **estimate.diagnostics}
                metrics |= {f"{name}/{i}": value for name, value in parts.items()}
        updates, opt_state = self._optimizer.update(
            mean.grad, state.opt_state, state.theta
        )
        state = state.replace(
            theta=optax.apply_updates(state.theta, updates),
            opt_state=opt_state,
            populations=sharding.constrain(populations),
            step=state.step + 1,
        )
        return state, metrics

    @functools.partial(jax.jit, static_argnums=(0, 3, 4))
    def meta_loss(
        self,
        data: tuple[Data, ...],
        theta: Theta,
        horizon: int,
        num_runs: int,
        key: PRNGKeyArray,
    ) -> Float[Array, " systems"]:
        """Returns each system's mean loss over fresh unperturbed episodes."""

        def episode(system, data, key):
            key_init, key_unroll = jax.random.split(key)
            state = system.init_state(theta, data, jnp.asarray(horizon), key_init)
            return unroll(system, data, theta, state, horizon, key_unroll)[1].mean()

        # One run after the other: a vmap over keys takes twice as long to compile.
        keys = jax.random.split(key, num_runs)
        means = [
            jax.lax.map(lambda key, s=system, d=d: episode(s, d, key), keys).mean()
            for system, d in zip(self.systems, data, strict=True)
        ]
        return jnp.stack(means)

    @property
    def _optimizer(self) -> optax.GradientTransformation:
        return self.outer_optimizer.as_optax(self.num_outer_steps)
