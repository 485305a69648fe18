"""What each estimator costs, as compiled; writes the table of docs/estimators.md.

    python -m benchmarks.estimators [--write]

On one inner training: a 13-32-32-3 MLP on the wine table, trained by a per-parameter
MLP, in windows of 10 of 100 steps, with 8 pairs or episodes.
"""

import sys
from pathlib import Path

import jax

from lopt.describe import convert
from lopt.mlp import PerParameterMLP
from meta_train.diagnostics import Probe
from meta_train.estimators import ESTIMATORS, PES
from meta_train.inner_training import InnerTraining
from meta_train.truncation import Truncation
from tasks.mlp import MLP

PAGE = Path(__file__).parent.parent / "docs" / "estimators.md"
BEGIN, END = "<!-- costs -->\n", "<!-- /costs -->"


def rows(system, truncation, num=8):
    data, theta = system.load(), system.init_theta(jax.random.key(0))
    for name, kind in ESTIMATORS.items():
        estimator = convert(PES(truncation, num), kind, num_episodes=num)
        probe = Probe(estimator, system, data, theta)
        seconds = min(probe.pace(jax.random.key(i)) for i in range(3))
        yield name, estimator, probe.cost, seconds


def number(value):
    return f"{value:,.0f}" if value >= 100 else f"{value:.2g}"


def table(system, truncation):
    lines = [
        "| estimator | inner steps | MFLOP | MB | ms | MFLOP per inner step |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    for name, estimator, cost, seconds in rows(system, truncation):
        steps = estimator.num_inner_steps
        flops = cost.flops / 1e6
        if name == "ARTBP":  # the compiler counts every window that there may be
            flops *= estimator.steps_per_update / truncation.horizon
        values = (steps, flops, cost.bytes / 1e6, 1e3 * seconds, flops / steps)
        line = f"| {name} | {' | '.join(map(number, values))} |"
        print(line, flush=True)
        lines.append(line)
    return "\n".join(lines) + "\n"


def main():
    system = InnerTraining(MLP("wine"), PerParameterMLP(width=8))
    text = table(system, Truncation(length=10, horizon=100))
    if "--write" in sys.argv:
        page = PAGE.read_text()
        before, rest = page.split(BEGIN)
        _, after = rest.split(END)
        PAGE.write_text(before + BEGIN + text + END + after)


if __name__ == "__main__":
    main()
