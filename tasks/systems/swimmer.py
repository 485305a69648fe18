"""Gymnasium's MuJoCo Swimmer, controlled by a linear policy as outer parameters."""

import functools
import importlib
import os
import threading
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jaxtyping import Array, Float, PRNGKeyArray
from typing_extensions import override

from tasks.base import Data, Horizon, Loss, Theta, UnrolledSystem
from tasks.prepared import DataError

_NUM_JOINTS, _NUM_MOTORS = 5, 2
# The position in the plane is not observed.
_NUM_OBSERVED = 2 * _NUM_JOINTS - 2
_START_NOISE = 0.1
_CONTROL_COST = 1e-4


class SwimmerState(struct.PyTreeNode):
    """Simulator state: positions and velocities in double precision.

    Attributes:
        bits: The float64 values, bit-cast to pairs of uint32. This keeps the precision
            of the simulator without JAX's x64 mode.
    """

    bits: Any


@dataclass(frozen=True)
class Swimmer(UnrolledSystem):
    """Three-link swimmer with the negative reward of Swimmer-v5 as loss.

    `theta` is the matrix of a linear policy from observations to motor controls. The
    partners of an antithetic pair share the initial state of an episode; afterwards
    each continues from its own state.
    """

    @override
    def load(self) -> Data:
        _simulator()  # Raise early if the simulator is not installed.
        return ()

    @override
    def init_theta(self, key: PRNGKeyArray) -> Float[Array, "2 8"]:
        return jnp.zeros((_NUM_MOTORS, _NUM_OBSERVED))

    @override
    def init_state(
        self, theta: Theta, data: Data, horizon: Horizon, key: PRNGKeyArray
    ) -> SwimmerState:
        shape = (2 * _NUM_JOINTS,)
        noise = jax.random.uniform(
            key, shape, minval=-_START_NOISE, maxval=_START_NOISE
        )
        return SwimmerState(_callback(_start, _BITS, noise))

    @override
    def sample_input(self, data: Data, state: SwimmerState, key: PRNGKeyArray) -> None:
        return None

    @override
    def step(
        self, theta: Theta, state: SwimmerState, x: None
    ) -> tuple[SwimmerState, Loss]:
        loss = jax.ShapeDtypeStruct((), jnp.float32)
        bits, loss = _callback(_advance, (_BITS, loss), theta, state.bits)
        return SwimmerState(bits), loss


_BITS = jax.ShapeDtypeStruct((4 * _NUM_JOINTS,), jnp.uint32)


def _callback(function: Any, results: Any, *args: Array) -> Any:
    # `broadcast_all` makes one host call for the population, for any vmapped axes.
    return jax.pure_callback(function, results, *args, vmap_method="broadcast_all")


def _start(noise: Any) -> np.ndarray:
    return np.ascontiguousarray(noise, np.float64).view(np.uint32)


def _advance(policy: Any, bits: Any) -> tuple[np.ndarray, np.ndarray]:
    """Advance all environments by one step, which is four simulator steps.

    Args:
        policy: Linear policies, of shape ``(..., 2, 8)``.
        bits: Bit-cast states, of shape ``(..., 20)``.

    Returns:
        The bit-cast next states and the losses, of shape ``(...)``.
    """
    policy, bits = np.asarray(policy, np.float64), np.asarray(bits)
    state = np.ascontiguousarray(bits).view(np.float64).reshape(-1, 2 * _NUM_JOINTS)
    policies = policy.reshape(-1, _NUM_MOTORS, _NUM_OBSERVED)
    actions = (policies @ state[:, 2:, None])[..., 0]
    following = _simulator().step(state, actions)
    velocity = (following[:, 0] - state[:, 0]) / _simulator().seconds
    reward = velocity - _CONTROL_COST * np.sum(actions**2, axis=-1)
    losses = (-reward).astype(np.float32).reshape(bits.shape[:-1])
    return following.view(np.uint32).reshape(bits.shape), losses


class _Simulator:
    """Multithreaded MuJoCo rollouts: one shared model, one `MjData` per thread."""

    def __init__(self):
        try:
            gymnasium, mujoco, rollout = map(
                importlib.import_module, ("gymnasium", "mujoco", "mujoco.rollout")
            )
        except ImportError as error:
            raise DataError(
                f"Swimmer must have gymnasium and MuJoCo; {error}. "
                'Try pip install "lopt[control]".'
            ) from error
        environment = gymnasium.make("Swimmer-v5").unwrapped
        num_threads = os.cpu_count() or 1
        self._model = environment.model
        self._scratch = [mujoco.MjData(self._model) for _ in range(num_threads)]
        self._rollout = rollout.Rollout(nthread=num_threads)
        self._num_steps = environment.frame_skip
        self._lock = threading.Lock()
        self.seconds = environment.dt

    def step(self, state: np.ndarray, actions: np.ndarray) -> np.ndarray:
        """Advance the states, holding each action for one environment step.

        Args:
            state: Positions and velocities, of shape ``(n, 10)``.
            actions: Motor controls, of shape ``(n, 2)``.
        """
        time = np.zeros((len(state), 1))
        control = np.repeat(actions[:, None], self._num_steps, axis=1)
        with self._lock:  # Concurrent callbacks share the scratch space.
            states, _ = self._rollout.rollout(
                self._model, self._scratch, np.concatenate([time, state], 1), control
            )
        return np.ascontiguousarray(states[:, -1, 1:])


@functools.cache
def _simulator() -> _Simulator:
    return _Simulator()
