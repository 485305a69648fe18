"""Summary of an evaluation, printed by `lopt evaluate` and `lopt report`."""

from pathlib import Path

from evaluation.report.results import Results
from evaluation.report.tables import case_table, overall_table
from evaluation.report.write import PAGE_FILE
from meta_train.runtime.progress import ProgressReport


def print_summary(results: Results, out: Path, progress: ProgressReport) -> None:
    """Print the tables, headlines and caveats of an evaluation."""
    console = progress.console
    console.print("", case_table(results), "", overall_table(results), "")
    for line in (*results["headlines"], *_warnings(results)):
        progress.say(line)
    progress.say(f"Report: {out / PAGE_FILE}")


def _warnings(results: Results) -> list[str]:
    """Collect caveats: extended or too narrow grids, and skipped tasks."""
    lines = []
    wider = {
        f"{name} on {case['name']}"
        for case in results["cases"]
        for name, tuning in case["tuning"].items()
        if tuning["rounds"] > 1
    }
    if wider:
        lines.append(f"Grids were made wider for {', '.join(sorted(wider))}.")
    edges = [
        f"{name} on {case['name']}"
        for case in results["cases"]
        for name, tuning in case["tuning"].items()
        if tuning["at_edge"]
    ]
    if edges:
        lines.append(
            f"The best learning rate is still at the edge for {', '.join(edges)}."
        )
    if results["how"]["skipped"]:
        lines.append(f"Skipped, no data: {', '.join(results['how']['skipped'])}.")
    return lines
