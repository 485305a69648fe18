"""Runs whose theta is updated by an optax transformation of a Python program."""

import dataclasses

import chex
import jax
import numpy as np
import optax
import pytest

import lopt
from lopt.errors import UserError
from meta_train import CONFIGS, OuterAdam, meta_train, read_config
from meta_train.runtime.export import restore


def small(run_dir, num_outer_steps=20):
    return dataclasses.replace(
        CONFIGS["quadratic-schedule"],
        num_outer_steps=num_outer_steps,
        run_dir=run_dir,
        evaluate_every_steps=0,
        wandb="off",
    )


def test_any_optax_transformation_updates_theta(tmp_path):
    given = optax.chain(optax.clip(3.0), optax.adam(1e-3))
    theirs = meta_train(small(tmp_path / "a"), quiet=True, outer_optimizer=given)
    config = dataclasses.replace(
        small(tmp_path / "b"), outer_optimizer=OuterAdam(learning_rate=1e-3, clip=3.0)
    )
    ours = meta_train(config, quiet=True)
    chex.assert_trees_all_close(theirs.theta, ours.theta, rtol=1e-5)


def test_such_a_run_resumes_is_exported_and_restored(tmp_path):
    for num in (10, 20):
        result = meta_train(
            small(tmp_path / "a", num),
            quiet=True,
            extend=num == 20,
            outer_optimizer=optax.lion(1e-2),
        )
    whole = meta_train(
        small(tmp_path / "b"), quiet=True, outer_optimizer=optax.lion(1e-2)
    )
    chex.assert_trees_all_equal(result.theta, whole.theta)
    _, theta = lopt.load_theta(result.export)
    chex.assert_trees_all_equal(theta, result.theta)
    state = restore(read_config(tmp_path / "a"))
    chex.assert_trees_all_equal(state.theta, result.theta)
    assert int(state.step) == 20
    counts = [x for x in jax.tree.leaves(state.opt_state) if x.shape == ()]
    assert 20 in np.asarray(counts)


def test_another_transformation_is_refused(tmp_path):
    meta_train(small(tmp_path, 10), quiet=True, outer_optimizer=optax.adam(1e-2))
    for other in (optax.adam(2e-2), optax.sgd(1e-2), None):
        with pytest.raises(UserError, match=r"another configuration[\s\S]*sha256"):
            meta_train(small(tmp_path), quiet=True, extend=True, outer_optimizer=other)


def test_the_command_line_refers_to_the_program(tmp_path, lopt_command):
    run_dir = tmp_path / "run"
    meta_train(small(run_dir, 10), quiet=True, outer_optimizer=optax.adam(1e-2))
    done = lopt_command("meta-train", "--run-dir", run_dir, "--extend", 10)
    assert done.returncode == 2
    assert "outer_optimizer=" in done.stderr + done.stdout
    assert "Traceback" not in done.stderr
    done = lopt_command("export", run_dir, "--out", "out.safetensors")
    assert done.returncode == 0, done.stderr
