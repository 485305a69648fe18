"""Output of an evaluation: JSON results, CSV table, figures and HTML page."""

import csv
import json
from pathlib import Path

from evaluation.report import figures, html
from evaluation.report.results import RESULTS_FILE, Results
from lopt.files.atomic import write_atomically

TABLE_FILE, PAGE_FILE = "results.csv", "report.html"
_METRICS = (
    *("mean_loss", "final_loss", "test_loss", "test_error"),
    *("mean_loss_ratio", "final_loss_ratio", "speed_up", "wall_clock_speed_up"),
)


def write_report(directory: Path, results: Results) -> None:
    """Write results, table, figures and HTML page into `directory`."""
    directory.mkdir(parents=True, exist_ok=True)
    write_atomically(directory / RESULTS_FILE, json.dumps(results, indent=1) + "\n")
    _write_csv(directory / TABLE_FILE, results)
    drawn = figures.draw(results, directory / "figures")
    write_atomically(directory / PAGE_FILE, html.render(results, drawn))


def _write_csv(path: Path, results: Results) -> None:
    """Write a CSV file with one row for each task and optimizer."""
    parts = ("value", "low", "high")
    head = ["task", "num_steps", "reason", "optimizer", "learning_rate", "schedule"]
    head += [f"{m}{'' if p == 'value' else '_' + p}" for m in _METRICS for p in parts]
    head += ["steps_to_target", "diverged", "ms", "bytes_per_parameter"]
    with path.open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(head)
        for case in results["cases"]:
            for name, found in case["methods"].items():
                about = [case["name"], case["num_steps"], case["reason"], name]
                setting = found["settings"].get("final", (None, None))
                values = [(found.get(m) or {}).get(p) for m in _METRICS for p in parts]
                rest = [found.get(key) for key in head[-4:]]
                rows.writerow([*about, *setting, *values, *rest])
