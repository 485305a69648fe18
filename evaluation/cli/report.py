"""Command line of `lopt report`."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from lopt.cli.parse import parse


@dataclass(frozen=True)
class _Report:
    results: Annotated[Path, tyro.conf.Positional]
    """A results.json written by `lopt evaluate`, or its directory."""
    out: Path | None = None
    """Output directory for the report and figures; the results' own by default."""


def report(arguments: Sequence[str]) -> int:
    """Run `lopt report RESULTS [--out DIR]`."""
    options = parse(
        _Report,
        arguments,
        prog="lopt report",
        description="Draw the report of an evaluation again, from its numbers.",
    )
    from evaluation.cli.summary import print_summary
    from evaluation.report.results import read_results
    from evaluation.report.write import write_report
    from lopt.errors import UserError, one_line
    from meta_train.runtime.progress import ProgressReport
    from meta_train.runtime.run_directory import check_writable

    results = read_results(options.results)
    where = options.results
    out = options.out or (where if where.is_dir() else where.parent)
    check_writable(out, flag="--out")
    try:
        write_report(out, results)
        print_summary(results, out, ProgressReport("", 1))
    except OSError:
        raise
    # The file may come from anywhere: its values may have any type.
    except Exception as error:
        raise UserError(
            f"{options.results} must have the content that `lopt evaluate` writes; it "
            f"has not ({type(error).__name__}: {one_line(error)}). Try lopt evaluate."
        ) from error
    return 0
