import os
import subprocess
import sys
from pathlib import Path

import chex
import jax
import pytest

jax.config.update("jax_numpy_rank_promotion", "raise")


@pytest.fixture(autouse=True)
def _fresh_trace_counts():
    """Lets `chex.assert_max_traces` count in each test anew."""
    chex.clear_trace_counter()


@pytest.fixture
def key():
    return jax.random.key(0)


@pytest.fixture
def lopt_command(tmp_path):
    """Runs `lopt ...` as a user does, in a directory of its own."""

    def run(*arguments, timeout=240, **environment):
        return subprocess.run(
            [sys.executable, "-m", "lopt", *map(str, arguments)],
            cwd=tmp_path,
            env=command_environment(**environment),
            capture_output=True,
            text=True,
            timeout=timeout,
        )

    return run


def command_environment(**environment: str) -> dict[str, str]:
    root = Path(__file__).parent.parent
    return {**os.environ, "PYTHONPATH": str(root), "COLUMNS": "200", **environment}
