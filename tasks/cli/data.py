"""Command-line interface of `lopt data`: list, prepare and verify datasets."""

import contextlib
import difflib
from collections.abc import Callable, Iterator, Sequence

import tyro
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from tasks.datasets import DATASETS, Dataset
from tasks.datasets.images import TfdsImages
from tasks.datasets.tables import CsvTable
from tasks.prepared import DataError, data_dir


def data(arguments: Sequence[str]) -> int:
    """Run `lopt data list | prepare NAME | verify NAME`."""
    tyro.extras.subcommand_cli_from_dict(
        {"list": _list, "prepare": _prepare, "verify": _verify},
        args=arguments or ["--help"],
        prog="lopt data",
        description=f"Datasets. Those of files are kept in\n  {_shown_data_dir()}",
    )
    return 0


def _list() -> None:
    """List the datasets and whether each is available."""
    table = Table(box=None, pad_edge=False)
    for name in ("name", "inputs", "classes", "to train on", "is", "here"):
        table.add_column(name)
    for name, dataset in DATASETS.items():
        shape = " x ".join(map(str, dataset.shape))
        classes = str(dataset.num_classes) if dataset.num_classes else "-"
        here = "yes" if is_here(dataset) else "no"
        row = (name, shape, classes, f"{dataset.num_train:,}", dataset.about, here)
        table.add_row(*row)
    Console().print(table)
    print(f"\nFiles are looked for in\n  {_shown_data_dir()}")


def _shown_data_dir() -> str:
    return "".join(c if c.isprintable() else "?" for c in str(data_dir()))


def is_here(dataset: Dataset) -> bool:
    """Check whether the files of a dataset exist, without loading it."""
    try:
        dataset.check_prepared()
    except DataError:
        return False
    return True


def _prepare(
    name: tyro.conf.Positional[str],
    /,
    *,
    mirror: str | None = None,
    again: bool = False,
) -> None:
    """Download the official files of a dataset and write them in TFDS format.

    Args:
        name: Name of the dataset.
        mirror: URL of a directory with the same files. Defaults to the official URL.
        again: Replace an existing copy.
    """
    from tasks.datasets.prepare import prepare

    dataset = _find_images(name)
    if is_here(dataset) and not again:
        print(f"{name} is in {dataset.folder} already; --again replaces it.")
        return
    with _progress() as report:
        folder = prepare(dataset, report, mirror)
    print(f"{name} is in {folder}.")


def _verify(name: tyro.conf.Positional[str], /) -> None:
    """Read a dataset completely and validate it.

    Args:
        name: Name of the dataset.
    """
    from tasks.datasets.prepare import verify

    dataset = _find_images(name)
    with _progress() as report:
        found = verify(dataset, report)
    print(found)


def _find_images(name: str) -> TfdsImages:
    known = {n: d for n, d in DATASETS.items() if isinstance(d, TfdsImages)}
    if isinstance(DATASETS.get(name), CsvTable):
        DATASETS[name].check_prepared()
        raise DataError(
            f"{name} is a CSV file, which is not downloaded; it is there already."
        )
    if name in DATASETS and name not in known:
        raise DataError(f"{name} is part of lopt and needs no preparation.")
    if name not in known:
        close = difflib.get_close_matches(name, known, n=1)
        raise DataError(
            f"The dataset must be one of {', '.join(known)}, which are downloaded; got "
            f"{name!r}. Try {(close or ['mnist'])[0]}."
        )
    return known[name]


@contextlib.contextmanager
def _progress() -> Iterator[Callable[[str, int, int], None]]:
    columns = (TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn())
    with Progress(*columns, transient=True) as progress:
        tasks = {}

        def report(what: str, done: int, whole: int) -> None:
            if what not in tasks:
                tasks[what] = progress.add_task(what, total=whole)
            progress.update(tasks[what], completed=done, total=whole)

        yield report
