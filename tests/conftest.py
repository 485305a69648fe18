import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

# Compile time dominates: without XLA optimizations the suite takes 40 % less time.
os.environ.setdefault("XLA_FLAGS", "--xla_backend_optimization_level=0")

import chex
import jax
import pytest

from lopt.registry import OPTIMIZERS
from meta_train.estimators import ESTIMATORS
from tasks import datasets, zoo, zoo_queries

jax.config.update("jax_numpy_rank_promotion", "raise")

# Modules compile many equal programs, and later runs almost only equal ones.
_PROGRAMS = Path(__file__).parent.parent / ".pytest_cache" / "programs"
jax.config.update("jax_compilation_cache_dir", str(_PROGRAMS))
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)

# Real datasets: LOPT_DATA_DIR, or else a directory next to the repository if it exists.
_BESIDE = Path(__file__).parent.parent.parent / "shared" / "data" / "tfds"
if "LOPT_DATA_DIR" not in os.environ and _BESIDE.is_dir():
    os.environ["LOPT_DATA_DIR"] = str(_BESIDE)


# Caches of commands in subprocesses. The workers of pytest-xdist inherit the directory
# of the process that started them, so that each program is compiled once.
if "LOPT_TESTS_CACHE" not in os.environ:
    _CACHE = tempfile.TemporaryDirectory(prefix="lopt-tests-")
    os.environ["LOPT_TESTS_CACHE"] = _CACHE.name


def needs_data(problem):
    """Build the marks of a test that needs a task's data: skip if it is missing."""
    try:
        zoo_queries.check_prepared(problem)
    except datasets.DataError as error:
        return [pytest.mark.skip(reason=f"NO DATA: {error}")]
    return []


@pytest.fixture(autouse=True)
def _restored_registries():
    """Undo registrations of a test."""
    registries: Any = (OPTIMIZERS, ESTIMATORS, zoo.ZOO, datasets.DATASETS)
    before = [dict(registry) for registry in registries]
    yield
    for registry, old in zip(registries, before, strict=True):
        registry.clear()
        registry.update(old)


@pytest.fixture(autouse=True)
def _fresh_trace_counts():
    """Reset the trace counts of `chex.assert_max_traces` before each test."""
    chex.clear_trace_counter()


@pytest.fixture(autouse=True, scope="module")
def _forget_programs():
    """Free compiled programs after each module, to bound memory mappings."""
    yield
    jax.clear_caches()


@pytest.fixture
def key():
    return jax.random.key(0)


@pytest.fixture
def lopt_command(tmp_path):
    """Function that runs `lopt ...` in a subprocess, in a temporary directory."""

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


def wait_for(path: Path, *processes: subprocess.Popen, seconds: float = 90) -> None:
    """Wait until a file exists; fail if one of the processes exits first."""
    end = time.monotonic() + seconds
    while not path.exists():
        assert time.monotonic() < end, f"{path} was not written in {seconds} s"
        assert all(p.poll() is None for p in processes), f"they ended before {path}"
        time.sleep(0.01)


def on_devices(num: int, code: str, *arguments: str) -> Any:
    """Run Python on `num` CPU devices and parse its last output line as JSON."""
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        env=command_environment(JAX_NUM_CPU_DEVICES=str(num)),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def command_environment(**environment: str) -> dict[str, str]:
    root = Path(__file__).parent.parent
    return {
        **os.environ,
        "PYTHONPATH": str(root),
        "COLUMNS": "200",
        # Compiled programs are cached for this test session only.
        "XDG_CACHE_HOME": os.environ["LOPT_TESTS_CACHE"],
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        **environment,
    }
