"""Inner training of a task by a learned optimizer, as an unrolled system."""

from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import optax
from flax import struct
from jaxtyping import Array, Int, PRNGKeyArray
from typing_extensions import override

from lopt.base import LearnedOptimizer
from meta_train.core.measures import Measure
from tasks.base import (
    Constants,
    Data,
    Family,
    Horizon,
    Input,
    Loss,
    ParameterizedFamily,
    Params,
    Problem,
    Theta,
    UnrolledSystem,
)


class InnerTrainingState(struct.PyTreeNode):
    """State of one inner training run.

    Attributes:
        params: Inner parameters.
        opt_state: State of the learned optimizer.
        horizon: Number of steps in this episode.
        constants: Constants of the problem drawn for this episode.
    """

    params: Params
    opt_state: optax.OptState
    horizon: Int[Array, "..."]
    constants: Constants = ()


class Parts(NamedTuple):
    """Outer parameters of an optimizer and of a `ParameterizedFamily` task.

    Attributes:
        optimizer: Outer parameters of the learned optimizer.
        task: Outer parameters of the task.
    """

    optimizer: Theta
    task: Theta


class Splits(NamedTuple):
    """Data or batches of the training split and of a held-out split.

    Attributes:
        train: Used for the inner gradient.
        held_out: Validation split, used for the meta-loss, or test split in an
            evaluation; ``()`` if neither is needed.
    """

    train: Data
    held_out: Data


@dataclass(frozen=True)
class InnerTraining(UnrolledSystem):
    """System in which one step is one update of the inner parameters.

    By default, the loss of a step is evaluated at the parameters before the update, at
    which the gradient is evaluated too.
    """

    task: Family
    optimizer: LearnedOptimizer
    measure: Measure = "train-loss"
    """Meta-loss: loss on the training batch, or loss or error on a validation batch."""
    loss_at: Literal["before", "after"] = "before"
    """Evaluate the loss of a step before or after its update. After it, the loss of a
    window of one step depends on theta, at the cost of a further evaluation."""

    def __post_init__(self):
        if self.measure == "validation-error" and not self._has_error():
            raise ValueError(
                "`measure` must be a loss for a task that has no classes; got "
                f"measure={self.measure!r} and {type(self.task).__name__}. "
                'Try "validation-loss".'
            )

    def _has_error(self) -> bool:
        errors = []

        def look(key):
            return errors.append(
                self.task.problem(self.task.sample_constants(key)).error
            )

        # An abstract key does not initialize the backend, whose devices may not be
        # configured yet.
        key = jax.eval_shape(lambda: jax.random.key(0))
        jax.eval_shape(look, key)
        return errors[0] is not None

    @override
    def load(self) -> Splits:
        held_back = self.measure != "train-loss"
        validation = self.task.load("validation") if held_back else ()
        return Splits(self.task.load("train"), validation)

    @override
    def init_theta(self, key: PRNGKeyArray) -> Theta:
        theta = self.optimizer.init_theta(key)
        if not isinstance(self.task, ParameterizedFamily):
            return theta
        return Parts(theta, self.task.init_theta(jax.random.fold_in(key, 1)))

    @property
    @override
    def theta_owner(self) -> Any:
        if isinstance(self.task, ParameterizedFamily):
            return self.optimizer, self.task
        return self.optimizer

    @property
    @override
    def zoo_problem(self) -> Family:
        return self.task

    @property
    @override
    def learned_optimizer(self) -> LearnedOptimizer:
        return self.optimizer

    def optimizer_theta(self, theta: Theta) -> Theta:
        """Select the outer parameters of the learned optimizer."""
        return theta.optimizer if isinstance(self.task, ParameterizedFamily) else theta

    def _problem(self, theta: Theta, constants: Constants) -> Problem:
        if not isinstance(self.task, ParameterizedFamily):
            return self.task.problem(constants)
        return self.task.with_theta(theta.task).problem(constants)

    @override
    def init_state(
        self, theta: Theta, data: Splits, horizon: Horizon, key: PRNGKeyArray
    ) -> InnerTrainingState:
        constants = self.task.sample_constants(jax.random.fold_in(key, 1))
        state = InnerTrainingState(
            params=self._problem(theta, constants).init_params(key),
            opt_state=(),
            horizon=jnp.asarray(horizon, jnp.int32),
            constants=constants,
        )
        return self.with_optimizer(theta, state)

    def with_optimizer(
        self, theta: Theta, state: InnerTrainingState
    ) -> InnerTrainingState:
        """Initialize the optimizer state at the parameters of `state`."""
        opt_state = self._optimizer(theta, state.horizon).init(state.params)
        return state.replace(opt_state=opt_state)

    @override
    def sample_input(
        self, data: Splits, state: InnerTrainingState, key: PRNGKeyArray
    ) -> Input:
        problem = self.task.problem(state.constants)
        train = problem.sample_batch(data.train, key)
        if self.measure == "train-loss":
            return Splits(train, ())
        key = jax.random.fold_in(key, 1)
        return Splits(train, problem.sample_batch(data.held_out, key))

    @override
    def step(
        self, theta: Theta, state: InnerTrainingState, x: Splits
    ) -> tuple[InnerTrainingState, Loss]:
        value, grads, loss = self.gradient(theta, state, x)
        following = self.apply(theta, state, value, grads)
        if self.loss_at == "after":
            problem = self._problem(theta, state.constants)
            loss = self._measured(problem, following.params, x)
        return following, loss

    def gradient(
        self, theta: Theta, state: InnerTrainingState, x: Splits
    ) -> tuple[Loss, Params, Loss]:
        """Compute the inner loss, its gradient, and the loss selected by `measure`.

        Args:
            theta: Outer parameters.
            state: State before the step.
            x: Training batch, and validation batch if `measure` needs one.

        Returns:
            The training loss, its gradient with respect to the inner parameters, and
            the loss of the system.
        """
        problem = self._problem(theta, state.constants)
        value, grads = jax.value_and_grad(problem.loss)(state.params, x.train)
        if self.measure == "train-loss" and problem.measure is None:
            return value, grads, value
        return value, grads, self._measured(problem, state.params, x)

    def _measured(self, problem: Problem, params: Params, x: Splits) -> Loss:
        if self.measure == "train-loss":
            return problem.reported(params, x.train)
        if self.measure == "validation-loss":
            return problem.reported(params, x.held_out)
        assert problem.error is not None
        return problem.error(params, x.held_out)

    def apply(
        self, theta: Theta, state: InnerTrainingState, value: Loss, grads: Params
    ) -> InnerTrainingState:
        """Apply one update of the learned optimizer to the inner parameters."""
        updates, opt_state = self._optimizer(theta, state.horizon).update(
            grads, state.opt_state, state.params, value=value
        )
        params = optax.apply_updates(state.params, updates)
        return state.replace(params=params, opt_state=opt_state)

    def _optimizer(
        self, theta: Theta, horizon: Horizon
    ) -> optax.GradientTransformationExtraArgs:
        return self.optimizer.as_optax(self.optimizer_theta(theta), horizon)
