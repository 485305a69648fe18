"""Reading of mutated files within the limits of a sandbox."""

import os
import traceback
import warnings
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import jax
import numpy as np

from benchmarks.fuzz.base import Kind
from benchmarks.fuzz.kinds import KINDS
from benchmarks.fuzz.sandbox import Sandbox, TooSlowError
from lopt.errors import UserError
from tasks.size import size

_INPUTS_PER_CLEANUP = 500
_LONGEST_MESSAGE = 2_000


@dataclass
class Findings:
    """Outcomes of one kind of file.

    Attributes:
        outcomes: Number of inputs by outcome.
        faults: Description of each input that broke a rule.
    """

    outcomes: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)


def fuzz(
    name: str, folder: Path, num_inputs: int, *, seed: int = 0, first: int = 0
) -> Findings:
    """Read mutated files of one kind.

    Args:
        name: Key of `KINDS`.
        folder: Empty directory for the files.
        num_inputs: Number of mutations.
        seed: Random seed of all mutations.
        first: Index of the first mutation, to repeat a finding.
    """
    kind = KINDS[name](folder)
    sandbox, found = Sandbox([folder]), Findings()
    for i in range(first, first + num_inputs):
        outcome, fault = _judge(kind, sandbox, seed, i)
        found.outcomes[outcome] += 1
        if fault:
            found.faults.append(f"{name} {i}, {outcome}: {fault}")
        if i % _INPUTS_PER_CLEANUP == _INPUTS_PER_CLEANUP - 1:
            jax.clear_caches()  # of programs for all the tasks in cards
            size.cache_clear()
    return found


def _judge(kind: Kind, sandbox: Sandbox, seed: int, i: int) -> tuple[str, str]:
    """Read one mutated file; return the outcome and the broken rule, if any."""
    mutation = kind.mutate(np.random.default_rng([seed, i]))
    fault = ""
    try:
        # Warnings about horizons and overflow are expected.
        with warnings.catch_warnings(action="ignore"), sandbox.run():
            outcome = kind.read()
    except UserError as error:
        outcome, text = "refused", str(error)
        if "\n" in text or len(text) > _LONGEST_MESSAGE:
            fault = f"message of {len(text)} characters: {text[:200]!r}"
        if _is_from_memory(error):
            fault = f"out of memory: {error}"
    except TooSlowError:
        outcome, fault = "slow", "timeout"
    except KeyboardInterrupt:
        raise
    # Panics in the Rust code of safetensors derive from `BaseException`.
    except BaseException as error:
        place = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{os.path.basename(place.filename)}:{place.lineno}"
        outcome = "crashed"
        fault = f"{type(error).__name__}: {str(error)[:300]} ({where})"
    if sandbox.violations:
        fault = f"{fault} {sandbox.violations[0]}".strip()
    return outcome, f"{fault} [{mutation}]" if fault else ""


def _is_from_memory(error: BaseException | None) -> bool:
    while error is not None:
        if isinstance(error, MemoryError):
            return True
        error = error.__cause__ or error.__context__
    return False
