"""Command line: one process per kind, whose memory is limited."""

import json
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import tyro

from benchmarks.fuzz.kinds import KINDS
from benchmarks.fuzz.run import fuzz
from benchmarks.fuzz.sandbox import MEMORY, limit_memory, resident


def main(
    num_inputs: int = 10_000,
    seed: int = 0,
    first: int = 0,
    kinds: tuple[str, ...] = (),
    child: bool = False,
) -> int:
    """Read mutated files and print the number of inputs by outcome.

    Args:
        num_inputs: Number of inputs of each kind.
        seed: Random seed of the mutations.
        first: Index of the first input, to repeat a finding.
        kinds: Kinds of files; all by default.
        child: Fuzz in this process.

    Returns:
        Exit code: 1 if any input broke a rule, otherwise 0.
    """
    if child:
        return _child(kinds[0], num_inputs, seed, first)
    options = [f"--num-inputs={num_inputs}", f"--seed={seed}", f"--first={first}"]
    command = [sys.executable, "-m", "benchmarks.fuzz", "--child", *options]
    codes = [
        subprocess.run([*command, "--kinds", kind]).returncode
        for kind in kinds or KINDS
    ]
    return int(any(codes))


def _child(kind: str, num_inputs: int, seed: int, first: int) -> int:
    begin = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        limit_memory()
        found = fuzz(kind, Path(folder), num_inputs, seed=seed, first=first)
    seconds, peak = time.monotonic() - begin, resident()
    if peak > MEMORY:
        found.faults.append(f"{kind}: peak memory of {peak / 1e6:.0f} MB")
    for fault in found.faults[:50]:
        print(f"  {json.dumps(fault)}", flush=True)
    outcomes = ", ".join(f"{n} {o}" for o, n in Counter(found.outcomes).most_common(12))
    print(
        f"{kind}: {num_inputs} inputs, {len(found.faults)} faults, {seconds:.0f} s, "
        f"peak {peak / 1e6:.0f} MB: {outcomes}",
        flush=True,
    )
    return int(bool(found.faults))


if __name__ == "__main__":
    sys.exit(tyro.cli(main))
