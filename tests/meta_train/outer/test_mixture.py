"""Task mixtures: metrics, validation, selection of theta and refused settings."""

import dataclasses
import json

import jax.numpy as jnp
import numpy as np
import pytest

import lopt
from lopt.errors import UserError
from lopt.optimizers.classical import LearnedSGD
from lopt.optimizers.scheduled_sgd import ScheduledSGD
from lopt.registry import OPTIMIZERS
from meta_train.config.config import MetaTrainConfig
from meta_train.config.preset_configs import CONFIGS, compose
from meta_train.core.inner_training import InnerTraining
from meta_train.core.truncation import Truncation
from meta_train.estimators import PES
from meta_train.outer.outer_optimizer import OuterAdam
from meta_train.runtime.export import export_run, restore
from meta_train.runtime.run import meta_train
from tasks.systems.influence_balancing import InfluenceBalancing
from tasks.zoo import ZOO
from tasks.zoo_queries import unique_names

TASKS = ("quadratic", "toy-regression", "quadratics")


def make_config(run_dir, **fields):
    systems = [InnerTraining(ZOO[name].problem, ScheduledSGD(0.1)) for name in TASKS]
    default = {
        "systems": tuple(systems),
        "estimator": PES(Truncation(5, 20), num_pairs=4, std=0.1, normalize="estimate"),
        "outer_optimizer": OuterAdam(0.05),
        "objective": "late-log",
        "systems_per_update": 2,
        "num_outer_steps": 12,
        "log_every_steps": 2,
        "evaluate_every_steps": 4,
        "num_evaluation_runs": 2,
        "validation_tasks": ("quadratics", "toy-regression"),
        "select": "best",
        "wandb": "off",
        "run_dir": run_dir,
    }
    return MetaTrainConfig(**default | fields)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    config = make_config(tmp_path_factory.mktemp("run"))
    meta_train(config)
    lines = (config.run_dir / "metrics.jsonl").read_text().splitlines()
    return config, [json.loads(line) for line in lines]


def test_metrics_name_the_tasks(finished):
    _, lines = finished
    assert {f"loss/{name}" for name in TASKS} <= set(lines[-1])
    evaluated = [line for line in lines if "meta_loss" in line]
    assert [line["step"] for line in evaluated] == [0, 4, 8, 12]
    assert {f"meta_loss/{name}" for name in TASKS} <= set(evaluated[0])
    names = {f"validation_loss/{name}" for name in ("quadratics", "toy-regression")}
    assert names <= set(evaluated[0])
    mean = np.mean([evaluated[0][name] for name in names])
    np.testing.assert_allclose(evaluated[0]["validation_loss"], mean, rtol=1e-6)


def test_the_best_theta_on_the_validation_tasks_is_exported(finished):
    config, lines = finished
    losses = {x["step"]: x["validation_loss"] for x in lines if "validation_loss" in x}
    best = min(losses, key=losses.__getitem__)
    card = lopt.read_card(config.run_dir / "optimizer.safetensors")
    assert card["num_outer_steps"] == best
    np.testing.assert_allclose(card["validation_loss"], losses[best], rtol=1e-6)
    assert card["task_names"] == list(TASKS)
    _, theta = lopt.load_theta(config.run_dir / "optimizer.safetensors")
    np.testing.assert_array_equal(theta, restore(config).best.theta)


def test_the_best_theta_survives_a_stop(finished, tmp_path):
    whole, _ = finished
    config = make_config(tmp_path / "run", num_outer_steps=12)
    first = dataclasses.replace(config, num_outer_steps=8)
    meta_train(first)
    # The schedule is constant, so the first eight updates are those of the whole run.
    path = config.run_dir / "config.json"
    described = json.loads(path.read_text())
    path.write_text(json.dumps({**described, "num_outer_steps": 12}))
    meta_train(config)
    one, other = restore(whole), restore(config)
    np.testing.assert_array_equal(one.theta, other.theta)
    np.testing.assert_array_equal(one.best.theta, other.best.theta)
    assert int(one.best.step) == int(other.best.step)


def test_the_moving_average_is_exported(tmp_path):
    fields = {"validation_tasks": (), "select": "last", "average_decay": 0.9}
    config = make_config(tmp_path / "run", **fields)
    meta_train(config)
    path = export_run(config.run_dir, tmp_path / "mine.safetensors")
    state = restore(config)
    np.testing.assert_array_equal(lopt.load_theta(path)[1], state.average)
    assert not jnp.array_equal(state.average, state.theta)


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"systems_per_update": 4}, r"between 1 and the 3 systems .* got 4\. Try 1"),
        ({"systems_per_update": 0}, "got 0"),
        ({"system_weights": (1.0, 2.0)}, "must be 3 non-negative numbers"),
        ({"system_weights": (0.0, 0.0, 0.0)}, "not all zero"),
        ({"average_decay": 1.0}, r"in \[0, 1\); got 1.0"),
        ({"validation_tasks": ()}, "needs tasks to validate on"),
        ({"evaluate_every_steps": 0}, "must be positive to validate"),
        ({"validation_tasks": ("rosenbroc",)}, "Did you mean 'rosenbrock'"),
        ({"validation_tasks": ("digits-masked",)}, "digits-masked is not"),
        (
            {"systems": (InfluenceBalancing(),), "systems_per_update": 1},
            "optimizer; got",
        ),
        ({"systems": ()}, "must not be empty"),
    ],
)
def test_bad_mixtures_are_refused(fields, text, tmp_path):
    with pytest.raises(ValueError, match=text):
        make_config(tmp_path, **fields)


def test_systems_that_do_not_share_theta_are_refused(tmp_path):
    task = ZOO["quadratic"].problem
    one, other = InnerTraining(task, ScheduledSGD()), InnerTraining(task, LearnedSGD())
    with pytest.raises(
        ValueError, match=r"system 1 differs .*\(ScheduledSGD -> LearnedSGD\)"
    ):
        make_config(tmp_path, systems=(one, other), systems_per_update=None)
    other = InnerTraining(task, ScheduledSGD(0.3))
    with pytest.raises(ValueError, match=r"initial_lr: 0.01 -> 0.3.*repeated for each"):
        make_config(tmp_path, systems=(one, other), systems_per_update=None)


def test_names_are_those_of_the_zoo_and_unique():
    entries = [ZOO[name].problem for name in ("quadratic", "rosenbrock", "quadratic")]
    found = unique_names([*entries, dataclasses.replace(entries[0], dim=3)])
    assert found == ("quadratic-1", "rosenbrock", "quadratic-2", "RandomQuadratic")


def test_presets_keep_training_validation_and_held_out_tasks_apart():
    general = CONFIGS["general"]
    assert len(general.systems) >= 8
    truncation = general.estimator.truncation
    assert truncation.horizon >= 10 * truncation.min_horizon
    uses = lambda names: {ZOO[name].use for name in names}
    for name in ("general", "demo"):
        assert uses(CONFIGS[name].names) == {"train"}
    assert uses(general.validation_tasks) == {"validation"}


def test_weights_of_a_preset_are_dropped_with_its_tasks():
    general = CONFIGS["general"]
    assert len(general.system_weights) == len(general.systems)
    assert compose(general, tasks=["wine-mlp", "quadratic"]).system_weights == ()
    assert compose(general, optimizer="LearnedAdam").system_weights


def test_an_unknown_task_of_validation_is_an_error_of_the_user(tmp_path):
    with pytest.raises(UserError):
        make_config(tmp_path, validation_tasks=("nothing-like-it",))


@pytest.mark.parametrize("name", ["CoordinateLSTM", "PerParameterMLP"])
def test_an_optimizer_selected_by_name_has_its_own_defaults(name):
    (system,) = compose(CONFIGS["digits-mlp"], optimizer=name).systems
    assert system.learned_optimizer == OPTIMIZERS[name]()
