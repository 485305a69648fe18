"""Report of the experiments: one HTML page with all figures and verdicts."""

import json
from collections.abc import Sequence
from pathlib import Path

from evaluation.paper.experiment import Experiment, Scale
from evaluation.paper.runner import FIGURE_FILE, Outcome, read_outcome
from evaluation.report import page
from evaluation.report.figures import Drawn
from lopt.files.atomic import write_atomically

PAGE_FILE, SUMMARY_FILE = "report.html", "summary.json"


def write_report(experiments: Sequence[Experiment], scale: Scale, out: Path) -> Path:
    """Write the page and the summary of all experiments that have ended.

    Args:
        experiments: Experiments with the settings of `scale`.
        scale: Scale of the experiments.
        out: Directory of their results.

    Returns:
        Path of the page.
    """
    found = [read_outcome(experiment, scale, out) for experiment in experiments]
    outcomes = [outcome for outcome in found if outcome is not None]
    summary = {
        outcome.experiment.name: {
            **outcome.verdict._asdict(),
            "verdict": outcome.verdict.word,
            "seconds": outcome.seconds,
        }
        for outcome in outcomes
    }
    write_atomically(out / SUMMARY_FILE, json.dumps(summary, indent=1) + "\n")
    write_atomically(out / PAGE_FILE, render(outcomes, scale))
    return out / PAGE_FILE


def render(outcomes: Sequence[Outcome], scale: Scale) -> str:
    """Render the page of some outcomes."""
    head = ["experiment", "in the paper", "verdict", "minutes"]
    rows = [
        [
            page.cell(outcome.experiment.name),
            page.cell(outcome.experiment.figure),
            page.cell(outcome.verdict.word),
            page.cell(f"{outcome.seconds / 60:.1f}"),
        ]
        for outcome in outcomes
    ]
    body = f"""<p>Experiments of Vicol, Metz and Sohl-Dickstein (2021),
<i>Unbiased Gradient Estimation in Unrolled Computation Graphs with Persistent Evolution
Strategies</i>, at the scale <b>{page.escaped(scale)}</b>. Curves are means over seeds,
shaded areas their range. A comparison holds if all seeds agree, and is inconclusive if
the seeds overlap. Settings were fixed before the runs.</p>
{page.table(head, rows)}
{"".join(_section(outcome, scale) for outcome in outcomes)}"""
    return page.document("The paper, reproduced", body)


def _section(outcome: Outcome, scale: Scale) -> str:
    about = outcome.experiment
    drawn = Drawn(about.name, about.shows, outcome.directory / FIGURE_FILE)
    parts = {
        "claim": about.claim,
        "verdict": outcome.verdict.word,
        "evidence": outcome.verdict.evidence,
        "the paper shows": about.shows,
        "what differs": about.differs,
        "command": f"lopt reproduce {about.name} --scale {scale}",
    }
    lines = "".join(
        f"<dt>{page.escaped(name)}</dt><dd>{page.escaped(text)}</dd>"
        for name, text in parts.items()
    )
    title = page.escaped(f"{about.name}: {about.figure}")
    return f"<h2>{title}</h2>\n<dl>{lines}</dl>\n{page.figure(drawn, heading=False)}"
