"""Damaged files of every kind are refused in one line; `benchmarks.fuzz` reads more."""

import os

import jax
import pytest
from jax.experimental.compilation_cache import compilation_cache

from benchmarks.fuzz import run
from benchmarks.fuzz.base import Kind
from benchmarks.fuzz.kinds import KINDS
from lopt.errors import UserError

# Tasks of cards are traced, and reports are drawn.
NUM_INPUTS = {"cards": 40, "results": 40}


@pytest.fixture(autouse=True)
def _no_cached_programs():
    """Disable the compilation cache, whose files the sandbox forbids to open."""
    jax.config.update("jax_enable_compilation_cache", False)
    compilation_cache.reset_cache()
    yield
    jax.config.update("jax_enable_compilation_cache", True)
    compilation_cache.reset_cache()


@pytest.mark.parametrize("name", KINDS)
def test_damaged_files_do_no_harm(name, tmp_path):
    found = run.fuzz(name, tmp_path, NUM_INPUTS.get(name, 100), seed=1)
    assert not found.faults


def open_a_link_for_writing(path):
    path.symlink_to("/dev/full")
    path.open("w").close()


def raise_a_long_error():
    raise UserError("two\nlines")


def run_out_of_memory():
    try:
        raise MemoryError
    except MemoryError as error:
        raise UserError("too large") from error


FAULTS = {
    "opened '/etc/passwd'": lambda path: open("/etc/passwd").close(),
    "opened": open_a_link_for_writing,
    "os.system": lambda path: os.system("true"),
    "message of": lambda path: raise_a_long_error(),
    "out of memory": lambda path: run_out_of_memory(),
    "KeyError": lambda path: {}["missing"],
    "timeout": lambda path: os.mkfifo(path) or path.read_bytes(),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_the_fuzzer_detects_faults(fault, tmp_path, monkeypatch):
    class Harmful(Kind):
        def mutate(self, rng):
            (tmp_path / "x").unlink(missing_ok=True)
            return "mutation"

        def read(self):
            FAULTS[fault](tmp_path / "x")
            return "accepted"

    monkeypatch.setattr("benchmarks.fuzz.sandbox.BLOCKED_SECONDS", 0.2)
    monkeypatch.setitem(KINDS, "harmful", Harmful)
    found = run.fuzz("harmful", tmp_path, 1)
    assert len(found.faults) == 1
    assert fault in found.faults[0]
