"""Training health: a run that cannot learn warns, stops and exports nothing."""

import dataclasses

import jax.numpy as jnp
import pytest

from lopt.errors import UserError
from lopt.optimizers.scheduled_sgd import ScheduledSGD
from meta_train.config.preset_configs import CONFIGS
from meta_train.core.inner_training import InnerTraining
from meta_train.runtime.export import export_run
from meta_train.runtime.run import meta_train
from tasks import register_task
from tasks.synthetic.quadratic import RandomQuadratic


def quadratic(tmp_path, **fields):
    return dataclasses.replace(
        CONFIGS["quadratic-schedule"],
        run_dir=tmp_path / "run",
        wandb="off",
        evaluate_every_steps=0,
        **fields,
    )


@pytest.mark.parametrize(
    ("estimator", "learning_rate"),
    [({"std": 1e-30}, 1e-2), ({"std": 1e10}, 1e-2), ({"std": 0.1}, 1e6)],
)
def test_a_run_without_a_gradient_stops(estimator, learning_rate, tmp_path, capsys):
    config = quadratic(tmp_path, num_outer_steps=500, max_faulty_updates=20)
    config = dataclasses.replace(
        config,
        estimator=dataclasses.replace(config.estimator, **estimator),
        outer_optimizer=dataclasses.replace(
            config.outer_optimizer, learning_rate=learning_rate
        ),
    )
    with pytest.raises(UserError, match="must make progress") as error:
        meta_train(config)
    assert "Nothing was exported" in str(error.value)
    output = capsys.readouterr().out
    assert "members were not finite" in output or "gradient was zero" in output
    assert not list(tmp_path.rglob("*.safetensors"))


@dataclasses.dataclass(frozen=True)
class Broken(RandomQuadratic):
    value: str = "nan"

    def loss(self, params, batch):
        return super().loss(params, batch) * jnp.float32(self.value)


@pytest.mark.parametrize("value", ["nan", "inf"])
def test_a_task_without_a_finite_loss_stops_the_run(value, tmp_path, capsys):
    config = quadratic(tmp_path, num_outer_steps=500, max_faulty_updates=20)
    register_task("broken", Broken(value=value))
    system = InnerTraining(Broken(value=value), ScheduledSGD())
    with pytest.raises(UserError, match=r"must make progress.*members were not finite"):
        meta_train(dataclasses.replace(config, systems=(system,)))
    assert "32 of 32 members were not finite" in capsys.readouterr().out
    assert not list(tmp_path.rglob("*.safetensors"))


def test_a_run_that_diverges_keeps_its_last_good_checkpoint(tmp_path):
    config = quadratic(tmp_path, num_outer_steps=40, checkpoint_every_steps=20)
    meta_train(config)
    config = dataclasses.replace(
        config,
        estimator=dataclasses.replace(config.estimator, std=1e-30),
        max_faulty_updates=10,
    )
    (tmp_path / "run" / "config.json").write_text("{")
    config = dataclasses.replace(config, num_outer_steps=100)
    with pytest.raises(UserError, match="Last good checkpoint: step 40"):
        meta_train(config)
    kept = sorted(p.name for p in (tmp_path / "run" / "checkpoints").iterdir())
    assert kept == ["20", "40"]


def test_an_untrained_theta_is_exported_only_on_request(tmp_path):
    config = quadratic(tmp_path, num_outer_steps=5, max_faulty_updates=0)
    optimizer = dataclasses.replace(config.outer_optimizer, learning_rate=1e-30)
    config = dataclasses.replace(config, outer_optimizer=optimizer)
    with pytest.raises(UserError, match="still has its initial value"):
        meta_train(config)
    run_dir, path = tmp_path / "run", tmp_path / "optimizer.safetensors"
    with pytest.raises(UserError, match="--allow-untrained"):
        export_run(run_dir, path)
    assert export_run(run_dir, path, allow_untrained=True).is_file()
