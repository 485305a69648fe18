"""Tables of an evaluation for the terminal."""

from collections.abc import Mapping

from rich import box
from rich.markup import escape
from rich.table import Table

from evaluation.report.results import Results, best_baseline
from lopt.errors import one_line


def case_table(results: Results) -> Table:
    """Tabulate contenders against tuned Adam and the best baseline, task by task."""
    how, contenders = results["how"], list(results["contenders"])
    table = _table(
        f"Final training loss, {how['num_seeds']} unseen seeds, 95 % intervals",
        "Ratio: over tuned Adam, below 1 is better. Speed-up: how many times as many "
        "steps Adam needs, at the best constant rate of every moment. Baselines have "
        "the best learning rate and schedule, found on other seeds.",
    )
    several = len(contenders) > 1
    table.add_column("task\nsteps, why", no_wrap=True)
    name = "" if several else _plain(contenders[0])
    table.add_column(name, justify="right", overflow="fold", min_width=10)
    for name in ("Adam", "ratio", "speed-up"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("best baseline", justify="right", no_wrap=True)
    for case in results["cases"]:
        best = best_baseline(case, results)
        for i, name in enumerate(contenders):
            found, adam = case["methods"][name], case["methods"]["adam"]
            about = _plain(f"{case['num_steps']}, {case['reason']}")
            about = f"{_plain(case['name'])}\n[dim]{about}[/dim]"
            loss = _loss(found["final_loss"])
            if found["diverged"]:
                loss += f"\n[red]{found['diverged']:.0%} diverged[/red]"
            table.add_row(
                about if i == 0 else "",
                f"{_plain(name)}\n{loss}" if several else loss,
                _loss(adam["final_loss"]),
                _ratio(found["final_loss_ratio"], lower_is_better=True),
                _ratio(found["speed_up"], lower_is_better=False),
                f"{_loss(case['methods'][best]['final_loss']).splitlines()[0]}\n{_plain(best)}",
            )
    return table


def overall_table(results: Results) -> Table:
    """Tabulate all optimizers, aggregated over tasks.

    Tasks that a contender was trained on are excluded, unless there are no others.
    """
    judged = results["how"]["judged_on"]
    table = _table(
        f"Over {len(judged)} tasks",
        "loss: interquartile mean of final losses, tuned Adam's being 1. better: the "
        "chance that a run ends below one of Adam's. profile: area under the "
        "performance profile. ms, bytes: of a step, and of state for each parameter, "
        "on the first task. div.: diverged runs.",
    )
    methods = results["methods"]
    first = results["cases"][0]["methods"]
    table.add_column("optimizer", overflow="fold", min_width=10)  # may be long
    columns = ["rank", "loss", "better", "speed-up", "profile", "ms", "bytes"]
    diverged = any(found["diverged"] for found in methods.values())
    for name in columns + ["div."] * diverged:
        table.add_column(name, justify="right", no_wrap=True)
    for name in sorted(methods, key=lambda name: methods[name]["average_rank"]):
        found = methods[name]
        shown = _plain(name)
        shown = shown if found["is_baseline"] else f"[bold]{shown}[/bold]"
        table.add_row(
            shown,
            f"{found['average_rank']:.1f}",
            _ratio(found["interquartile_mean"], lower_is_better=None),
            _ratio(found["probability_of_improvement"], lower_is_better=None),
            f"{found['speed_up']:.2f}",
            f"{found['profile_score']:.2f}",
            number(first[name].get("ms")),
            f"{first[name].get('bytes_per_parameter') or 0:.1f}",
            *([f"{found['diverged']:.0%}"] * diverged),
        )
    return table


def _table(title: str, caption: str) -> Table:
    return Table(
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
        show_edge=False,
        pad_edge=False,
        title=_plain(title),
        title_justify="left",
        caption=caption,
        caption_justify="left",
    )


def _plain(text: str) -> str:
    """Escape the markup and the control characters of text from a file."""
    return escape(one_line(text))


def number(value: float | None) -> str:
    """Format a number with three significant digits, and `None` as ``-``."""
    return "-" if value is None else f"{value:.3g}"


def _loss(interval: Mapping[str, float | None]) -> str:
    value, low, high = (interval[k] for k in ("value", "low", "high"))
    if value is None:
        return "diverged"
    half = "" if low is None or high is None else f"\n±{(high - low) / 2:.1g}"
    return f"{value:.3g}{half}"


def _ratio(
    interval: Mapping[str, float | None], *, lower_is_better: bool | None
) -> str:
    value, low, high = (interval[k] for k in ("value", "low", "high"))
    if value is None:
        return "diverged"
    text = f"{value:.2f}"
    if low is None or high is None:
        return text
    text += f"\n{low:.2f}-{high:.2f}"
    # Only an interval that excludes 1 is a significant difference.
    if lower_is_better is None or low <= 1 <= high:
        return text
    won = (high < 1) == lower_is_better
    return f"[bold green]{text}[/bold green]" if won else f"[red]{text}[/red]"
