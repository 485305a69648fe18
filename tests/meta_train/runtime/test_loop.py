"""Loop of outer updates: what is saved, and when."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lopt.errors import UserError
from meta_train.config.preset_configs import CONFIGS
from meta_train.runtime import loop as loop_module, run as run_module
from meta_train.runtime.checkpoint import Checkpoints
from meta_train.runtime.export import restore
from meta_train.runtime.health import TrainingHealth
from meta_train.runtime.loop import OuterLoop
from meta_train.runtime.metrics import MetricsLog
from meta_train.runtime.metrics_file import read_metrics
from meta_train.runtime.run import meta_train


@pytest.fixture
def config(tmp_path):
    return dataclasses.replace(
        CONFIGS["quadratic-schedule"],
        run_dir=tmp_path / "run",
        wandb="off",
        num_outer_steps=60,
        log_every_steps=10,
        evaluate_every_steps=20,
    )


def theta_bytes(config):
    return [np.asarray(x).tobytes() for x in jax.tree.leaves(restore(config).theta)]


def test_a_run_that_is_killed_after_any_save_has_all_metrics(
    config, tmp_path, monkeypatch
):
    # Save by time, at each step.
    monkeypatch.setattr(loop_module, "_SECONDS_BETWEEN_PLANS", 0.0)
    config = dataclasses.replace(config, checkpoint_every_minutes=1e-9)
    save, kills = Checkpoints.save, [7, 20, 40]

    def killed(self, state):
        save(self, state)
        self.wait()
        if int(state.step) in kills:
            kills.remove(int(state.step))
            raise KeyboardInterrupt

    monkeypatch.setattr(Checkpoints, "save", killed)
    while kills:
        with pytest.raises(KeyboardInterrupt):
            meta_train(config)
    meta_train(config)
    lines = read_metrics(tmp_path / "run" / "metrics.jsonl")
    assert [line["step"] for line in lines] == list(range(61))
    evaluated = [line["step"] for line in lines if "meta_loss" in line]
    assert evaluated == [0, 20, 40, 60]


def test_an_unexpected_exception_saves_first(config, monkeypatch):
    write = MetricsLog.write

    def fail(self, step, metrics):
        if step == 30:
            raise ArithmeticError("unexpected")
        write(self, step, metrics)

    with monkeypatch.context() as patch:
        patch.setattr(MetricsLog, "write", fail)
        with pytest.raises(ArithmeticError):
            meta_train(config)
    assert int(restore(config).step) == 30
    meta_train(config)
    whole = dataclasses.replace(config, run_dir=config.run_dir.with_name("whole"))
    meta_train(whole)
    assert theta_bytes(config) == theta_bytes(whole)


def test_theta_that_is_not_finite_is_not_saved(config, tmp_path):
    trainer = config.make_trainer()
    state = trainer.init(trainer.load(), 0)
    checkpoints = Checkpoints(tmp_path / "checkpoints", print)
    health = TrainingHealth(config, print)
    loop = OuterLoop(config, trainer, (), checkpoints, None, None, None, health)
    loop.save_last(state)
    bad = jax.tree.map(lambda x: x * jnp.nan, state.theta)
    state = state.replace(theta=bad, step=state.step + 1)
    with pytest.raises(UserError, match=r"theta must be finite; at step 1.*step 0"):
        loop.save_last(state)
    assert checkpoints.latest == 0
    checkpoints.close()


class StopAtOnce:
    """Stop request that arrives after the first update."""

    def __init__(self, say):
        self._num_reads = 0

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    @property
    def name(self):
        self._num_reads += 1
        return "SIGTERM" if self._num_reads > 2 else None

    @name.setter
    def name(self, value):
        pass


def test_a_stop_between_faulty_updates_is_not_a_failure(config, monkeypatch, capsys):
    monkeypatch.setattr(run_module, "StopRequest", StopAtOnce)
    monkeypatch.setattr(loop_module, "_SECONDS_BETWEEN_PLANS", 0.0)
    estimator = dataclasses.replace(config.estimator, std=1e10)
    meta_train(dataclasses.replace(config, estimator=estimator))
    said = capsys.readouterr().out
    assert "Stopped by SIGTERM and nothing good to save of 60" in said
    assert list((config.run_dir / "checkpoints").iterdir()) == []
