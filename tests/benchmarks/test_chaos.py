"""Chaos run: faults are injected, and differences between runs are found."""

import json
import re
import subprocess
import sys
from pathlib import Path

import jax.numpy as jnp
import pytest

import lopt
from benchmarks.chaos import differences
from tests.conftest import command_environment


@pytest.fixture
def two_runs(tmp_path):
    """Directories of two equal runs of three steps."""
    for name in ("expected", "found"):
        (tmp_path / name).mkdir()
        path = tmp_path / name / "optimizer.safetensors"
        lopt.save(path, lopt.ScheduledSGD(), jnp.ones(2), {})
        lines = [
            {"step": i, "loss": 0.5, "inner_steps_per_second": len(name)}
            for i in range(4)
        ]
        write_metrics(tmp_path / name, lines)
    return tmp_path / "expected", tmp_path / "found", lines


def write_metrics(run_dir, lines):
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (run_dir / "metrics.jsonl").write_text(text)


def test_equal_runs_have_no_differences(two_runs):
    expected, found, _ = two_runs
    assert differences(expected, found, 3) == []


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda lines: lines[:2] + lines[3:], "metrics lack steps [2]; twice: []"),
        (lambda lines: [*lines, lines[1]], "metrics lack steps []; twice: [1]"),
        (lambda lines: [*lines[:3], {**lines[3], "loss": 0.25}], "differ at steps [3]"),
    ],
)
def test_metrics_that_differ_are_found(change, message, two_runs):
    expected, found, lines = two_runs
    write_metrics(found, change(lines))
    assert message in "\n".join(differences(expected, found, 3))


def test_a_theta_that_differs_in_one_bit_is_found(two_runs):
    expected, found, _ = two_runs
    theta = jnp.nextafter(jnp.ones(2), jnp.inf)
    lopt.save(found / "optimizer.safetensors", lopt.ScheduledSGD(), theta, {})
    (problem,) = differences(expected, found, 3)
    assert problem == "theta differs from that of the undisturbed run"


@pytest.mark.slow
def test_a_run_under_faults_ends_as_the_undisturbed_one():
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.chaos", "--minutes=0.4", "--seed=0"],
        env=command_environment(),
        capture_output=True,
        text=True,
        cwd=Path(lopt.__file__).parent.parent,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "theta is bitwise equal" in done.stdout
    found = re.search(r"^all +(\d+)$", done.stdout, re.M)
    assert found is not None
    assert int(found[1]) > 0
