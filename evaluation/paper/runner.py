"""Running of one experiment: jobs that are recorded, resumed, checked and drawn."""

import dataclasses
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from matplotlib import rc_context

from evaluation.paper.experiment import Experiment, Job, Scale, Verdict
from evaluation.paper.records import Records
from evaluation.report.results import to_json
from lopt.errors import UserError, one_line
from lopt.files.atomic import write_atomically
from lopt.files.dataclass_json import differences, to_dict
from lopt.files.json_file import read_object
from lopt.source_hash import source_hash
from meta_train.config.config import MetaTrainConfig
from meta_train.runtime.run import MetaTrainResult, meta_train

SCHEMA = 1
ABOUT_FILE, RECORD_FILE, VERDICT_FILE = "experiment.json", "record.json", "verdict.json"
FIGURE_FILE = "figure.svg"
_MOST_RECORDED = 64  # numbers of a theta that is recorded
# Packages whose code determines the numbers; drawing and checking are repeated anyway.
_SOURCES = ("lopt", "tasks", "meta_train")


class Interrupted(Exception):  # noqa: N818
    """Raised after a stop request; the same command resumes."""


class Outcome(NamedTuple):
    """Outcome of an experiment.

    Attributes:
        experiment: The experiment with its settings.
        verdict: Verdict on the claim.
        seconds: Time of all jobs together, over all invocations.
        directory: Directory of the figure and of the records.
    """

    experiment: Experiment
    verdict: Verdict
    seconds: float
    directory: Path


def reproduce(
    experiment: Experiment,
    scale: Scale,
    out: Path,
    on_progress: Callable[[str, int], None] = lambda name, done: None,
) -> Outcome:
    """Run the jobs of an experiment that are not recorded yet, then check and draw.

    Args:
        experiment: Experiment with its settings.
        scale: Scale of these settings.
        out: Directory that has a subdirectory for each experiment.
        on_progress: Called with the name of each job before it runs, and the number of
            jobs that are recorded.

    Raises:
        Interrupted: After a stop request.
        UserError: If data is missing, or if the directory has results of another
            scale, version or settings.
    """
    experiment.check_prepared()
    directory = out / experiment.name
    check_directory(experiment, scale, out)
    directory.mkdir(parents=True, exist_ok=True)
    about = json.dumps(_describe(experiment, scale), indent=1) + "\n"
    write_atomically(directory / ABOUT_FILE, about)
    found: dict[str, Any] = {}
    seconds = 0.0
    for i, job in enumerate(experiment.jobs()):
        path = directory / job.name / RECORD_FILE
        if not path.exists():
            on_progress(job.name, i)
            start = time.monotonic()
            value = to_json(_run(job, path.parent))
            record = {"value": value, "seconds": time.monotonic() - start}
            write_atomically(path, json.dumps(record) + "\n")
        record = _read(path)
        found[job.name] = record["value"]
        seconds += record["seconds"]
    outcome = _conclude(experiment, scale, Records(found), seconds, directory)
    return outcome


def _run(job: Job, directory: Path) -> Any:
    if not isinstance(job.work, MetaTrainConfig):
        directory.mkdir(parents=True, exist_ok=True)
        return job.work()
    config = dataclasses.replace(job.work, run_dir=directory)
    result = meta_train(config, quiet=True)
    if result.num_outer_steps < config.num_outer_steps:
        raise Interrupted
    return _summarize(result)


def _summarize(result: MetaTrainResult) -> dict[str, Any]:
    """Convert the result of a run to JSON values."""
    leaves = [np.asarray(x) for x in jax.tree.leaves(result.theta)]
    is_small = sum(leaf.size for leaf in leaves) <= _MOST_RECORDED
    theta = [float(x) for leaf in leaves for x in leaf.ravel()] if is_small else None
    metrics = {name: column.tolist() for name, column in result.metrics.items()}
    return {"theta": theta, "metrics": metrics}


def _conclude(
    experiment: Experiment,
    scale: Scale,
    results: Records,
    seconds: float,
    directory: Path,
) -> Outcome:
    """Check the claim, draw the figure and write both."""
    # Runs that diverge have infinite losses.
    with np.errstate(all="ignore"):
        verdict = experiment.check(results)
    if scale == "smoke":
        text = f"The scale smoke only shows that it runs. {verdict.evidence}"
        verdict = Verdict(None, text)
    with np.errstate(all="ignore"), rc_context({"svg.fonttype": "none"}):
        figure = experiment.draw(results)
        path = directory / FIGURE_FILE
        figure.savefig(path)
        figure.set_layout_engine("none")  # The layout is done.
        figure.savefig(path.with_suffix(".png"), dpi=120)
    content = {**verdict._asdict(), "seconds": seconds}
    write_atomically(directory / VERDICT_FILE, json.dumps(content, indent=1) + "\n")
    return Outcome(experiment, verdict, seconds, directory)


def read_outcome(experiment: Experiment, scale: Scale, out: Path) -> Outcome | None:
    """Read the outcome of an experiment that has ended at this scale and version.

    Returns:
        The outcome; `None` if the experiment has not ended.
    """
    directory = out / experiment.name
    path, about = directory / VERDICT_FILE, directory / ABOUT_FILE
    if not path.exists() or not about.exists():
        return None
    if differences(_read(about), _describe(experiment, scale)):
        return None
    content = _read(path)
    verdict = Verdict(content["holds"], content["evidence"])
    return Outcome(experiment, verdict, content["seconds"], directory)


def _describe(experiment: Experiment, scale: Scale) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "scale": scale,
        "source": source_hash(_SOURCES)[:16],
        "settings": to_dict(experiment),
    }


def check_directory(experiment: Experiment, scale: Scale, out: Path) -> None:
    """Validate that recorded results have the scale, version and settings asked for.

    Raises:
        UserError: If the directory of the experiment has other results.
    """
    path = out / experiment.name / ABOUT_FILE
    if not path.exists():
        return
    if changed := differences(_read(path), _describe(experiment, scale)):
        raise UserError(
            f"{path.parent} must have results of the same scale and version, which are "
            "never mixed; it differs (results -> asked for):\n  "
            + "\n  ".join(changed)
            + "\nTry another --out."
        )


def _read(path: Path) -> dict[str, Any]:
    try:
        return read_object(path)
    except (OSError, ValueError) as error:
        raise UserError(
            f"{path} is damaged ({one_line(error)}). Try removing its directory."
        ) from error
