"""Figures of meta-training runs."""

import dataclasses
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lopt.errors import UserError
from lopt.optimizers.scheduled_sgd import ScheduledSGD
from meta_train.config.preset_configs import CONFIGS
from meta_train.core.inner_training import InnerTraining
from meta_train.runtime.plot import draw, learned_steps, step_sizes
from tasks.synthetic.quadratic import RandomQuadratic


def test_step_sizes_of_a_schedule_are_the_schedule(key):
    system = InnerTraining(RandomQuadratic(dim=4), ScheduledSGD())
    theta = jnp.log(jnp.array([0.2, 0.1]))
    sizes = step_sizes(system, system.load(), theta, 10, jax.random.split(key, 2))
    expected = np.broadcast_to(0.2 - 0.1 * np.arange(10) / 10, (2, 10))
    np.testing.assert_allclose(sizes, expected, rtol=1e-3)


def test_a_run_is_plotted_at_the_end_and_on_request(lopt_command, tmp_path):
    arguments = ("quadratic-schedule", "--run-dir=run", "--wandb=off")
    steps = ("--num-outer-steps=40", "--evaluate-every-steps=20")
    done = lopt_command("meta-train", *arguments, *steps)
    assert done.returncode == 0, done.stderr
    assert "Figure: run/progress.png" in done.stdout
    own = (tmp_path / "run" / "progress.png").read_bytes()
    done = lopt_command("plot", "run", "--out=out")
    assert done.returncode == 0, done.stderr
    for kind in ("png", "svg"):
        assert (tmp_path / "out" / f"progress.{kind}").exists()
    # `lopt plot` adds the learned step sizes, which are slow to compute.
    assert len((tmp_path / "out" / "progress.png").read_bytes()) > len(own)
    done = lopt_command("plot", "nowhere")
    assert done.returncode == 2
    assert "must be the run directory of a `lopt meta-train`" in done.stderr


def test_missing_parts_are_omitted(tmp_path):
    config = dataclasses.replace(CONFIGS["influence-balancing"], run_dir=tmp_path)
    assert learned_steps(config, {"now": jnp.zeros(())}) == {}
    with pytest.raises(UserError, match="has no metrics yet"):
        draw(config, tmp_path)
    lines = [
        {"step": 10, "loss": None, "num_nonfinite": 3, "grad_norm": 0.0},
        {"step": 20, "loss": -1.0, "num_nonfinite": 0, "meta_loss": 2.0},
    ]
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (tmp_path / "metrics.jsonl").write_text(text + '{"step": 3')
    assert draw(config, tmp_path).exists()


@pytest.mark.parametrize("name", ["$x_{$", "\x1b[31m", "$\\frac"])
def test_a_run_directory_may_have_any_name(name, tmp_path):
    config = CONFIGS["influence-balancing"]
    config = dataclasses.replace(config, run_dir=tmp_path / name)
    config.run_dir.mkdir()
    line = {"step": 10, "loss": None, "num_nonfinite": 3, "meta_loss": None}
    (config.run_dir / "metrics.jsonl").write_text(json.dumps(line) + "\n")
    assert draw(config, config.run_dir).exists()
