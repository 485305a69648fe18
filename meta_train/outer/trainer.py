"""Outer training loop, compiled into one program."""

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Bool, Float, Int, Key, PRNGKeyArray

from meta_train.core.unroll import unroll
from meta_train.devices import sharding
from meta_train.estimators.base import Estimate, GradientEstimator
from meta_train.outer.compatibility import Compatibility
from meta_train.outer.outer_optimizer import OuterOptimizer
from meta_train.outer.outer_state import Best, OuterState
from tasks.base import Data, State, Theta, UnrolledSystem


@dataclass(frozen=True)
class Trainer:
    """Outer training of one theta on the weighted mean gradient of several systems."""

    systems: tuple[UnrolledSystem, ...]
    estimator: GradientEstimator
    outer_optimizer: OuterOptimizer | optax.GradientTransformation
    num_outer_steps: int
    names: tuple[str, ...] = ()
    """Name of each system in the metrics; its index by default."""
    weights: tuple[float, ...] = ()
    """Weight of each system in the mean gradient; equal by default."""
    systems_per_update: int | None = None
    """Number of systems drawn at random for each update; None: all."""
    average_decay: float = 0.0
    """Decay of the exponential moving average of theta; 0: no average."""
    keep_best: bool = False
    """Whether the state stores the best theta on the validation tasks."""

    def load(self) -> tuple[Data, ...]:
        """Load the data of each system and replicate it on every device."""
        return sharding.replicate(tuple(system.load() for system in self.systems))

    def check(self, data: tuple[Data, ...]) -> None:
        """Validate that the estimator supports every system, without running it.

        Raises:
            UserError: If a system lacks the required derivatives, or if the state of
                the estimator does not fit into memory.
        """
        for system, d in zip(self.systems, data, strict=True):
            theta = jax.eval_shape(system.init_theta, jax.random.key(0))
            Compatibility(system, d, theta).check(self.estimator)

    def init(
        self, data: tuple[Data, ...], seed: int, theta: Theta | None = None
    ) -> OuterState:
        """Initialize the state and place it on the devices.

        Args:
            data: Output of `load`.
            seed: Seed of the run.
            theta: Initial theta; that of the first system by default.
        """
        key = sharding.replicate(jax.random.key(seed))
        theta = initial_theta(self.systems[0], seed) if theta is None else theta
        with jax.set_mesh(sharding.mesh()):
            return self._init(data, key, sharding.replicate(theta)).placed()

    def shapes(self, data: tuple[Data, ...]) -> OuterState:
        """Compute the shapes and dtypes of the state by abstract evaluation."""

        def init():
            return self._init(
                data, jax.random.key(0), initial_theta(self.systems[0], 0)
            )

        return jax.eval_shape(init)

    @functools.partial(jax.jit, static_argnums=0)
    def _init(
        self, data: tuple[Data, ...], key: PRNGKeyArray, theta: Theta
    ) -> OuterState:
        key_init = _init_keys(key)[1]
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
            average=jax.tree.map(jnp.copy, theta) if self.average_decay else (),
            best=Best(
                theta=jax.tree.map(jnp.copy, theta),
                loss=jnp.full((), jnp.inf, jnp.float32),
                step=jnp.zeros((), jnp.int32),
            )
            if self.keep_best
            else (),
        )

    def run(
        self, data: tuple[Data, ...], state: OuterState, num_steps: int
    ) -> tuple[OuterState, dict[str, Float[Array, ""]]]:
        """Take `num_steps` outer updates.

        `num_steps` is traced, so one compiled program serves any number of updates. The
        buffers of `state` are donated: its arrays are deleted, and using them raises.
        Pass ``jax.tree.map(jnp.copy, state)`` to keep them.

        Returns:
            The new state, and the metrics averaged over the updates.
        """
        num = sharding.replicate(np.asarray(num_steps, np.int32))
        with jax.set_mesh(sharding.mesh()):
            return self.compiled_run(data, state, num)

    def lowered_run(self, data: tuple[Data, ...], state: OuterState) -> str:
        """Lower the program of `run` to StableHLO, without compiling it."""
        num = sharding.replicate(np.asarray(1, np.int32))
        with jax.set_mesh(sharding.mesh()):
            return type(self).compiled_run.lower(self, data, state, num).as_text()

    @functools.partial(jax.jit, static_argnums=0, donate_argnums=2)
    def compiled_run(
        self, data: tuple[Data, ...], state: OuterState, num_steps: Int[Array, ""]
    ) -> tuple[OuterState, dict[str, Float[Array, ""]]]:
        """Compiled implementation of `run`, on the devices of the current mesh."""

        def body(_, carry):
            state, totals = carry
            state, metrics = self._update(data, state)
            values = jnp.stack([metrics[name] for name in names]).astype(jnp.float32)
            # Metrics are NaN for systems that were not drawn or have no finite loss.
            # Exclude them from the mean.
            known = ~jnp.isnan(values)
            new = jnp.stack([jnp.where(known, values, 0.0), known.astype(jnp.float32)])
            return state, totals + new

        names = sorted(jax.eval_shape(self._update, data, state)[1])
        totals = jnp.zeros((2, len(names)), jnp.float32)
        state, (sums, counts) = jax.lax.fori_loop(0, num_steps, body, (state, totals))
        return state, dict(zip(names, sums / counts, strict=True))

    def _update(
        self, data: tuple[Data, ...], state: OuterState
    ) -> tuple[OuterState, dict[str, Float[Array, ""]]]:
        estimates, populations = zip(
            *[
                self._estimate(i, data[i], state, is_drawn)
                for i, is_drawn in enumerate(self._draw_systems(state))
            ],
            strict=True,
        )
        mean = self._average(estimates)
        # With `jax_enable_x64`, tasks may compute in float64.
        mean = mean.replace(grad=optax.tree.cast_like(mean.grad, state.theta))
        metrics = {
            "loss": mean.loss,
            "grad_norm": optax.tree.norm(mean.grad),
            **mean.diagnostics,
        }
        if len(estimates) > 1:
            for name, estimate in zip(self._names, estimates, strict=True):
                parts = {"loss": estimate.loss, **estimate.diagnostics}
                metrics |= {f"{k}/{name}": value for k, value in parts.items()}
        updates, opt_state = self._optimizer.update(
            mean.grad, state.opt_state, state.theta
        )
        theta = optax.apply_updates(state.theta, updates)
        average = state.average
        if self.average_decay:
            average = optax.incremental_update(theta, average, 1 - self.average_decay)
        state = state.replace(
            theta=theta,
            opt_state=opt_state,
            populations=sharding.constrain(populations),
            step=state.step + 1,
            average=average,
        )
        return state, metrics

    def _draw_systems(self, state: OuterState) -> Sequence[Any]:
        """Draw a boolean per system: whether to unroll it. ``None`` if all are used."""
        num = len(self.systems)
        if self.systems_per_update in (None, num):
            return [None] * num
        key = jax.random.fold_in(state.key, 2**32 - 6)
        order = jax.random.permutation(jax.random.fold_in(key, state.step), num)
        return list(order < self.systems_per_update)

    def _estimate(
        self, i: int, data: Data, state: OuterState, is_drawn: Bool[Array, ""] | None
    ) -> tuple[Estimate, State]:
        """Update the population of system `i`; NaN and no unroll if it is not drawn."""
        key = jax.random.fold_in(state.key, state.step * len(self.systems) + i)

        def update(population):
            return self.estimator.update(
                self.systems[i], data, state.theta, population, key
            )

        population = state.populations[i]
        if is_drawn is None:
            return update(population)
        shapes = jax.eval_shape(update, population)[0]
        missing = jax.tree.map(lambda x: jnp.full(x.shape, jnp.nan, x.dtype), shapes)
        return jax.lax.cond(is_drawn, update, lambda p: (missing, p), population)

    def _average(self, estimates: Sequence[Estimate]) -> Estimate:
        """Compute the weighted mean of the estimates of the drawn systems.

        Weights are divided by the fraction of systems drawn, so that the expectation
        over draws is the weighted mean over all systems. The loss is divided by the
        weights of the drawn systems instead.
        """
        weights = np.asarray(self.weights or [1.0] * len(estimates), np.float32)
        weights = weights / weights.sum()
        if self.systems_per_update in (None, len(estimates)):
            return jax.tree.map(
                lambda *x: sum(w * v for w, v in zip(weights, x, strict=True)),
                *estimates,
            )
        share = self.systems_per_update / len(estimates)

        def total(values: Sequence[Array]) -> Array:
            known = [jnp.where(jnp.isnan(v), 0.0, v) for v in values]
            parts = [w * v for w, v in zip(weights, known, strict=True)]
            return jnp.asarray(sum(parts) / share)

        mean = jax.tree.map(lambda *x: total(x), *estimates)
        losses = jnp.stack([estimate.loss for estimate in estimates])
        drawn = jnp.where(jnp.isnan(losses), 0.0, weights)
        return mean.replace(loss=jnp.nansum(losses * weights) / drawn.sum())

    def meta_loss(
        self,
        data: tuple[Data, ...],
        theta: Theta,
        horizon: int,
        num_runs: int,
        key: PRNGKeyArray,
    ) -> Float[Array, " systems"]:
        """Compute the mean loss of each system over new unperturbed episodes."""
        return mean_losses(self.systems, data, theta, horizon, num_runs, key)

    @property
    def num_inner_steps(self) -> float:
        """Inner steps per outer update, summed over systems."""
        num = self.systems_per_update or len(self.systems)
        return self.estimator.num_inner_steps * num

    @property
    def _names(self) -> Sequence[str]:
        return self.names or [str(i) for i in range(len(self.systems))]

    @property
    def _optimizer(self) -> optax.GradientTransformation:
        chosen = self.outer_optimizer
        if isinstance(chosen, OuterOptimizer):
            return chosen.as_optax(self.num_outer_steps)
        return chosen


def initial_theta(owner: Any, seed: int) -> Theta:
    """Compute the initial theta of a run with this seed.

    Args:
        owner: Learned optimizer or system that defines `init_theta`.
        seed: Seed of the run.
    """
    return owner.init_theta(_init_keys(jax.random.key(seed))[0])


def _init_keys(key: PRNGKeyArray) -> Key[Array, "2"]:
    # Updates fold in 0, 1, ...; the largest value cannot collide with them.
    return jax.random.split(jax.random.fold_in(key, 2**32 - 1))


@functools.partial(jax.jit, static_argnames=("systems", "horizon", "num_runs"))
def mean_losses(
    systems: tuple[UnrolledSystem, ...],
    data: tuple[Data, ...],
    theta: Theta,
    horizon: int,
    num_runs: int,
    key: PRNGKeyArray,
) -> Float[Array, " systems"]:
    """Compute the mean loss of each system over new unperturbed episodes.

    Args:
        systems: Systems to unroll.
        data: Output of `load` of each system.
        theta: Outer parameters.
        horizon: Number of steps in each episode.
        num_runs: Number of episodes per system.
        key: Random key of the episodes, shared by all systems.
    """

    def episode(system, data, key):
        key_init, key_unroll = jax.random.split(key)
        state = system.init_state(theta, data, jnp.asarray(horizon), key_init)
        return unroll(system, data, theta, state, horizon, key_unroll)[1].mean()

    # `map` rather than `vmap` over episodes, which takes twice as long to compile.
    keys = jax.random.split(key, num_runs)
    means = [
        jax.lax.map(lambda key, s=system, d=d: episode(s, d, key), keys).mean()
        for system, d in zip(systems, data, strict=True)
    ]
    return jnp.stack(means)
