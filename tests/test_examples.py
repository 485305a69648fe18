"""Examples run as documented in their first lines."""

import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import jax
import pytest

import lopt
from tests.conftest import command_environment

EXAMPLES = Path(__file__).parent.parent / "examples"


def test_two_processes_on_one_machine(tmp_path):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    commands = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", EXAMPLES / "two_processes.sh", tmp_path / "run"],
        env=command_environment(PATH=commands, PORT=str(port), JAX_PLATFORMS="cpu"),
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    for i in range(2):
        assert f"Process {i} of 2 on " in done.stdout
    assert (tmp_path / "run" / "optimizer.safetensors").exists()


@pytest.mark.slow
def test_code_of_ones_own_from_the_command_line(tmp_path):
    commands = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    run_dir = tmp_path / "runs" / "own"
    done = subprocess.run(
        ["bash", EXAMPLES / "own_code.sh", run_dir],
        env=command_environment(PATH=commands, JAX_PLATFORMS="cpu"),
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert done.returncode == 0, done.stderr
    assert "own" in done.stdout.splitlines()[-1]
    for file in ("own.safetensors", "progress.png", "evaluation/report.html"):
        assert (run_dir / file).exists()
    card = lopt.read_card(tmp_path / "runs" / "own-quadratic" / "optimizer.safetensors")
    assert card["init"] == str(run_dir / "own.safetensors")


def run_example(name, *arguments):
    """Run an example; return its output, its initial loss and its final loss."""
    done = subprocess.run(
        [sys.executable, EXAMPLES / name, *map(str, arguments)],
        env=command_environment(JAX_PLATFORMS="cpu"),
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    losses = re.findall(r"loss at the (?:beginning|end): (\S+)", done.stdout)
    return done.stdout, *map(float, losses)


@pytest.mark.parametrize("name", ["flax_linen.py", "flax_nnx.py", "equinox_mlp.py"])
def test_models_learn_with_a_file(name, optimizer_file):
    _, first, last = run_example(name, optimizer_file, "--num-steps", 20)
    assert last < first


def test_the_state_is_sharded_like_the_parameters(optimizer_file):
    name, steps = "sharded_parameters.py", ("--num-steps", 20)
    text, first, last = run_example(name, optimizer_file, *steps)
    assert last < first
    for sharding in ("(32,): P('model',)", "(64, 32): P(None, 'model')"):
        assert text.count(sharding) == 7  # the parameter and six momenta
    assert text.count("state") == 1 + 3 * 6


def test_an_optimizer_of_ones_own(tmp_path):
    path = tmp_path / "mine.safetensors"
    _, first, last = run_example("own_optimizer.py", path, "--num-outer-steps", 50)
    assert last < first
    assert lopt.read_card(path)["architecture"] == "SignMix"


@pytest.fixture
def optimizer_file(tmp_path):
    path, optimizer = tmp_path / "optimizer.safetensors", lopt.PerParameterMLP()
    lopt.save(path, optimizer, optimizer.init_theta(jax.random.key(0)))
    return path
