"""Classes registered at run time: accepted by files, run directories and by name."""

import dataclasses
from dataclasses import dataclass

import jax.numpy as jnp
import pytest

import lopt
from lopt.registry import register_optimizer
from meta_train.config.config import MetaTrainConfig
from meta_train.config.config_file import read_config, write_config
from meta_train.config.preset_configs import CONFIGS, compose
from meta_train.core.inner_training import InnerTraining
from meta_train.core.truncation import Truncation
from meta_train.estimators import PES, TruncatedES, register_estimator
from tasks import datasets
from tasks.datasets.embedded import Friedman
from tasks.supervised.mlp import MLP
from tasks.synthetic.quadratic import RandomQuadratic
from tasks.zoo import register_task
from tasks.zoo_queries import unique_names


@dataclass(frozen=True)
class Halving(lopt.ScheduledSGD):
    """A registered optimizer."""


@dataclass(frozen=True)
class BriefPES(PES):
    """A registered estimator."""


@dataclass(frozen=True)
class WideQuadratic(RandomQuadratic):
    """A registered task."""

    dim: int = 32


def test_a_run_directory_of_registered_classes_is_read(tmp_path):
    register_optimizer(Halving)
    register_estimator(BriefPES)
    register_task("wide-quadratic", WideQuadratic())
    config = compose(
        CONFIGS["quadratic-schedule"],
        optimizer="Halving",
        estimator="BriefPES",
        tasks=["wide-quadratic"],
    )
    assert config.names == ("wide-quadratic",)
    config = dataclasses.replace(config, run_dir=tmp_path)
    write_config(config)
    read = read_config(tmp_path)
    assert read == config
    assert isinstance(read.estimator, BriefPES)


def test_an_export_of_a_registered_optimizer_is_loaded(tmp_path, key):
    optimizer = Halving()
    file = tmp_path / "halving.safetensors"
    register_optimizer(Halving)
    theta = optimizer.init_theta(key)
    lopt.save(file, optimizer, theta)
    assert lopt.load_theta(file)[0] == optimizer
    tx = lopt.load(file, num_steps=5)
    params = {"w": jnp.ones(3)}
    tx.update(params, tx.init(params), params)


def test_a_registered_dataset_is_trained_on(key):
    datasets.register_dataset(Friedman("my-friedman", (10,), 0, 80, "a smaller one"))
    task = MLP("my-friedman")
    batch = task.sample_batch(task.load(), key)
    assert jnp.isfinite(task.loss(task.init_params(key), batch))


def test_registering_twice_is_harmless():
    for _ in range(2):
        register_optimizer(Halving)
        register_estimator(BriefPES)
        register_task("wide-quadratic", WideQuadratic())
        datasets.register_dataset(datasets.DATASETS["wine"])
    assert unique_names([WideQuadratic()]) == ("wide-quadratic",)


def test_names_that_are_taken_are_refused():
    fake = type("PES", (TruncatedES,), {"__module__": __name__})
    with pytest.raises(lopt.UserError, match=r"got PES, .*pes.PES. Try MyPES"):
        register_estimator(fake)
    fake = type("LearnedAdam", (Halving,), {"__module__": __name__})
    with pytest.raises(lopt.UserError, match="Try MyLearnedAdam"):
        register_optimizer(fake)
    with pytest.raises(lopt.UserError, match="Try my-digits-mlp"):
        register_task("digits-mlp", WideQuadratic())
    with pytest.raises(lopt.UserError, match="Try my-digits"):
        datasets.register_dataset(Friedman("digits", (10,), 0, 80, "not digits"))


def test_an_unregistered_class_names_the_remedy(tmp_path, key):
    file = tmp_path / "halving.safetensors"
    lopt.save(file, Halving(), Halving().init_theta(key))
    with pytest.raises(lopt.UserError, match="Halving"):
        lopt.load(file, num_steps=5)
    system = InnerTraining(WideQuadratic(), lopt.ScheduledSGD())
    pes = PES(Truncation(length=5, horizon=10))
    write_config(MetaTrainConfig(systems=(system,), estimator=pes, run_dir=tmp_path))
    with pytest.raises(lopt.UserError, match="WideQuadratic"):
        read_config(tmp_path)
