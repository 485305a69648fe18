"""Benchmark the cost of one estimate for each gradient estimator.

    python -m benchmarks.estimators [--write]

With `--write`, the table replaces the one in docs/estimators.md. The system is the
inner training of a 13-32-32-3 MLP on the wine dataset by a per-parameter MLP. The
horizon is 100 steps and the truncation window 10; populations have 8 antithetic pairs
or episodes. FLOPs and memory are read from the compiled program. The wall time is the
minimum of three measurements.
"""

import sys
from pathlib import Path

import jax

from lopt.files.dataclass_json import convert
from lopt.optimizers.per_parameter_mlp import PerParameterMLP
from meta_train.analysis.diagnostics import Probe
from meta_train.core.inner_training import InnerTraining
from meta_train.core.truncation import Truncation
from meta_train.estimators import ESTIMATORS, PES
from tasks.supervised.mlp import MLP

PAGE = Path(__file__).parent.parent / "docs" / "estimators.md"
BEGIN, END = "<!-- costs -->\n", "<!-- /costs -->"


def rows(system, truncation, num=8):
    """Yield name, estimator, compiled cost and seconds per estimate.

    Args:
        system: System to differentiate.
        truncation: Window length and horizon.
        num: Antithetic pairs or episodes in the population.
    """
    data, theta = system.load(), system.init_theta(jax.random.key(0))
    for name, kind in ESTIMATORS.items():
        estimator = convert(PES(truncation, num), kind, num_episodes=num)
        probe = Probe(estimator, system, data, theta)
        seconds = min(probe.pace(jax.random.key(i)) for i in range(3))
        yield name, estimator, probe.cost, seconds


def number(value):
    """Format with two significant digits, or as an integer from 100 on."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.2g}"


def table(system, truncation):
    """Print the rows as they are measured and return the Markdown table."""
    lines = [
        "| estimator | inner steps | MFLOP | MB | ms | MFLOP per inner step |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    for name, estimator, cost, seconds in rows(system, truncation):
        steps = estimator.num_inner_steps
        flops = cost.flops / 1e6
        # The count includes every window of the episode. An update takes a random
        # number of them, so scale by the expected number.
        if name == "ARTBP":
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
