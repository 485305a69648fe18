"""Black-box tuners on the outer problem: theta searched for by its losses alone.

Every tuner spends its inner steps in a number of slots that are unrolled side by side,
a window at a time. A slot whose episode is over, or given up, begins another.
"""

import functools
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, Key, PRNGKeyArray
from typing_extensions import override

from lopt.errors import UserError
from meta_train.trainer import Trainer
from meta_train.unroll import unroll
from tasks.base import Data, State, Theta, UnrolledSystem


class Found(NamedTuple):
    """What a tuner holds for the best after so many inner steps."""

    num_steps: int
    theta: Theta


@dataclass(frozen=True)
class Problem:
    """A system whose theta is to be found.

    Theta lies in a box around where meta-training would start.
    """

    system: UnrolledSystem
    horizon: int
    """Steps of an episode."""
    num_windows: int = 10
    """Of an episode, after each of which a tuner may decide."""
    radius: float = 5.0
    """Half the width of the box, in the units of theta."""

    def __post_init__(self):
        if self.horizon % self.num_windows:
            raise ValueError(
                "`horizon` must be a multiple of `num_windows`; got "
                f"{self.horizon} and {self.num_windows}."
            )

    @property
    def window(self) -> int:
        """Steps that a slot is unrolled at once."""
        return self.horizon // self.num_windows


class Tuner(ABC):
    """Searches for a theta with low loss."""

    @abstractmethod
    def search(
        self, problem: Problem, data: Data, budget: int, seed: int
    ) -> Iterator[Found]:
        """Yields what is best so far, until `budget` inner steps are spent."""


class _Slots:
    """Episodes at different ages, unrolled side by side."""

    def __init__(self, problem: Problem, data: Data, num: int, seed: int):
        self.problem, self.num, self.num_steps = problem, num, 0
        self._data, self._count = data, 0
        self._key = jax.random.fold_in(jax.random.key(seed), 2**32 - 5)
        start = problem.system.init_theta(jax.random.key(seed))
        self.center, self.unravel = ravel_pytree(start)
        self.thetas = np.tile(np.asarray(self.center), (num, 1))
        self.ages, self.totals = np.zeros(num, int), np.zeros(num)
        self._states = self._fresh()

    def advance(self) -> Float[np.ndarray, " slots"]:
        """Unrolls a window of every slot; returns each one's mean loss in it."""
        keys = jax.random.split(self._next_key(), self.num)
        self._states, losses = _advance(
            *(self.problem.system, self.problem.window, self.unravel),
            *(self._data, jnp.asarray(self.thetas), self._states, keys),
        )
        losses = np.nan_to_num(np.asarray(losses, float), nan=np.inf)
        self.num_steps += self.num * self.problem.window
        self.ages += 1
        self.totals += losses
        return losses

    def restart(self, which: np.ndarray) -> None:
        """Begins new episodes in some slots, at the theta that they have now."""
        choose = lambda new, old: jnp.where(
            jnp.reshape(jnp.asarray(which), (-1,) + (1,) * (new.ndim - 1)), new, old
        )
        self._states = jax.tree.map(choose, self._fresh(), self._states)
        self.ages[which], self.totals[which] = 0, 0.0

    def copy(self, source: np.ndarray) -> None:
        """Lets every slot go on from where the slot that `source` names is."""
        self._states = jax.tree.map(lambda x: x[source], self._states)
        self.thetas = self.thetas[source].copy()

    def clip(self, thetas: np.ndarray) -> np.ndarray:
        center, radius = np.asarray(self.center), self.problem.radius
        return np.clip(thetas, center - radius, center + radius)

    def theta(self, values: np.ndarray) -> Theta:
        return self.unravel(jnp.asarray(values, self.center.dtype))

    def _fresh(self) -> State:
        keys = jax.random.split(self._next_key(), self.num)
        return _start(
            *(self.problem.system, self.problem.horizon, self.unravel),
            *(self._data, jnp.asarray(self.thetas), keys),
        )

    def _next_key(self) -> PRNGKeyArray:
        self._count += 1
        return jax.random.fold_in(self._key, self._count)


@functools.partial(jax.jit, static_argnums=(0, 1, 2))
def _start(
    system: UnrolledSystem,
    horizon: int,
    unravel: Callable[[Array], Theta],
    data: Data,
    thetas: Float[Array, "slots size"],
    keys: Key[Array, " slots"],
) -> State:
    begin = lambda theta, key: system.init_state(unravel(theta), data, horizon, key)
    return jax.vmap(begin)(thetas, keys)


@functools.partial(jax.jit, static_argnums=(0, 1, 2), donate_argnums=5)
def _advance(
    system: UnrolledSystem,
    window: int,
    unravel: Callable[[Array], Theta],
    data: Data,
    thetas: Float[Array, "slots size"],
    states: State,
    keys: Key[Array, " slots"],
) -> tuple[State, Float[Array, " slots"]]:
    def one(theta, state, key):
        state, losses = unroll(system, data, unravel(theta), state, window, key)
        return state, losses.mean()

    return jax.vmap(one)(thetas, states, keys)


@dataclass(frozen=True)
class OptunaTuner(Tuner):
    """A sampler of Optuna, with or without a pruner that gives episodes up."""

    sampler: str
    """Of `SAMPLERS`."""
    pruner: str = "none"
    """Of `PRUNERS`."""
    num_slots: int = 8
    """Episodes that run at the same time."""

    @override
    def search(
        self, problem: Problem, data: Data, budget: int, seed: int
    ) -> Iterator[Found]:
        study = self._study(problem, seed)
        slots = _Slots(problem, data, self.num_slots, seed)
        center, radius = np.asarray(slots.center), problem.radius
        optuna = _optuna()
        box = {
            f"theta{i}": optuna.distributions.FloatDistribution(c - radius, c + radius)
            for i, c in enumerate(center.astype(float))
        }
        trials: list[Any] = [None] * slots.num

        def begin(i: int) -> None:
            trials[i] = study.ask(box)
            slots.thetas[i] = [trials[i].params[name] for name in box]

        for i in range(slots.num):
            begin(i)
        slots.restart(np.ones(slots.num, bool))
        best, worst = (np.inf, slots.theta(center)), 0.0
        while slots.num_steps + slots.num * problem.window <= budget:
            slots.advance()
            over = np.zeros(slots.num, bool)
            for i, trial in enumerate(trials):
                value = slots.totals[i] / slots.ages[i]
                worst = max(worst, abs(value) if np.isfinite(value) else 0.0)
                # Samplers want numbers; a diverged episode is worse than all others.
                told = float(value if np.isfinite(value) else 10 * worst + 1.0)
                trial.report(told, int(slots.ages[i]))
                if slots.ages[i] == problem.num_windows:
                    over[i] = True
                    study.tell(trial, told)
                    if value < best[0]:
                        best = value, slots.theta(slots.thetas[i])
                elif not np.isfinite(value) or trial.should_prune():
                    over[i] = True
                    study.tell(trial, state=optuna.trial.TrialState.PRUNED)
            yield Found(slots.num_steps, best[1])
            for i in np.flatnonzero(over).tolist():
                begin(i)
            if over.any():
                slots.restart(over)

    def _study(self, problem: Problem, seed: int) -> Any:
        optuna = _optuna()
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        samplers = {
            "random": lambda: optuna.samplers.RandomSampler(seed),
            "tpe": lambda: optuna.samplers.TPESampler(seed=seed, constant_liar=True),
            "gp": lambda: _gaussian_process(optuna, seed),
        }
        pruners = {
            "none": lambda: optuna.pruners.NopPruner(),
            "halving": lambda: optuna.pruners.SuccessiveHalvingPruner(
                reduction_factor=3
            ),
            "hyperband": lambda: optuna.pruners.HyperbandPruner(
                max_resource=problem.num_windows, reduction_factor=3
            ),
        }
        return optuna.create_study(
            sampler=samplers[self.sampler](), pruner=pruners[self.pruner]()
        )


def _optuna() -> Any:
    try:
        import optuna
    except ImportError as error:
        raise UserError(
            "black-box tuners need Optuna, which is not installed. Try "
            'pip install "lopt[tuners]", or --tuners pbt.'
        ) from error
    return optuna


def _gaussian_process(optuna: Any, seed: int) -> Any:
    import importlib.util

    if importlib.util.find_spec("torch") is None:
        raise UserError(
            "Optuna's Gaussian process needs torch, which is not installed. Try "
            'pip install "lopt[tuners]", or --tuners random tpe halving hyperband pbt.'
        )
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that it is experimental
        return optuna.samplers.GPSampler(seed=seed)


@dataclass(frozen=True)
class PopulationBasedTraining(Tuner):
    """Members that lag copy one that leads, and move its theta a little."""

    num_slots: int = 8
    """Members."""
    share: float = 0.25
    """Of the members, how many lag, and how many lead."""
    move: float = 0.1
    """Standard deviation of a move, in units of the box's radius."""

    @override
    def search(
        self, problem: Problem, data: Data, budget: int, seed: int
    ) -> Iterator[Found]:
        generator = np.random.default_rng(seed)
        slots = _Slots(problem, data, self.num_slots, seed)
        spread = generator.uniform(-1, 1, slots.thetas.shape) * problem.radius
        slots.thetas = (slots.thetas + spread).astype(slots.thetas.dtype)
        slots.restart(np.ones(slots.num, bool))
        few = max(1, round(self.share * slots.num))
        while slots.num_steps + slots.num * problem.window <= budget:
            losses = slots.advance()
            order = np.argsort(losses)
            yield Found(slots.num_steps, slots.theta(slots.thetas[order[0]]))
            source = np.arange(slots.num)
            source[order[-few:]] = generator.choice(order[:few], few)
            slots.copy(source)
            lagging = order[-few:]
            moves = generator.normal(size=(few, slots.thetas.shape[1]))
            moved = slots.thetas[lagging] + self.move * problem.radius * moves
            slots.thetas[lagging] = slots.clip(moved)
            if slots.ages[0] == problem.num_windows:
                slots.restart(np.ones(slots.num, bool))


@dataclass(frozen=True)
class MetaTraining(Tuner):
    """What is not a black box: the outer updates of a trainer, for comparison."""

    trainer: Trainer
    """Of the one system."""

    @override
    def search(
        self, problem: Problem, data: Data, budget: int, seed: int
    ) -> Iterator[Found]:
        each = self.trainer.estimator.num_inner_steps
        trainer = replace(self.trainer, num_outer_steps=max(1, budget // each))
        state = trainer.init((data,), seed)
        at_once = max(1, trainer.num_outer_steps // 50)
        for done in range(at_once, trainer.num_outer_steps + 1, at_once):
            state, _ = trainer.run((data,), state, at_once)
            yield Found(int(done * each), jax.tree.map(jnp.copy, state.theta))


TUNERS: dict[str, Tuner] = {
    "random": OptunaTuner("random"),
    "tpe": OptunaTuner("tpe"),
    "gp": OptunaTuner("gp"),
    "halving": OptunaTuner("random", "halving"),
    "hyperband": OptunaTuner("tpe", "hyperband"),
    "pbt": PopulationBasedTraining(),
}
"""Black-box tuners by name."""


@functools.partial(jax.jit, static_argnums=(0, 1))
def episode_losses(
    system: UnrolledSystem,
    horizon: int,
    data: Data,
    theta: Theta,
    keys: Key[Array, " runs"],
) -> Float[Array, " runs"]:
    """Returns the mean losses of fresh episodes at `theta`."""

    def episode(key):
        key_init, key_unroll = jax.random.split(key)
        state = system.init_state(theta, data, horizon, key_init)
        return unroll(system, data, theta, state, horizon, key_unroll)[1].mean()

    return jax.lax.map(episode, keys)
