"""Figures of meta-objective surfaces of a run."""

import dataclasses

import pytest

from lopt.cli.main import main
from lopt.errors import UserError
from meta_train.config.preset_configs import CONFIGS, compose
from meta_train.runtime.plot_surface import draw_surface
from meta_train.runtime.run import meta_train


@pytest.mark.parametrize("preset", ["toy-regression", "influence-balancing"])
def test_the_surface_around_a_run_is_drawn(preset, tmp_path, capsys):
    config = dataclasses.replace(
        CONFIGS[preset],
        run_dir=tmp_path / "run",
        num_outer_steps=4,
        log_every_steps=2,
        evaluate_every_steps=0,
        wandb="off",
    )
    meta_train(config, quiet=True)
    flags = ["--surface", "--surface-points=5"]
    assert main(["plot", str(config.run_dir), *flags]) == 0
    assert "Surface: " in capsys.readouterr().out
    assert (config.run_dir / "surface.png").stat().st_size > 10_000


def test_a_large_theta_has_no_surface(tmp_path):
    config = dataclasses.replace(
        compose(CONFIGS["quadratic-schedule"], optimizer="LearnedMuon"),
        run_dir=tmp_path,
    )
    with pytest.raises(UserError, match=r"one or two numbers; that of .* has 72"):
        draw_surface(config, tmp_path, 5)
