"""What an evaluation leaves behind: a table, a figure and a JSON file."""

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich import box
from rich.table import Table

from evaluation.baselines import LEARNING_RATES
from evaluation.run import Result, Score
from evaluation.statistics import Interval

SCHEMA = 1


def table(results: Sequence[Result], num_seeds: int) -> Table:
    """Returns the results as a table; ratios below 1 favour the learned optimizer."""
    table = Table(
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
        show_edge=False,
        pad_edge=False,
        title=f"Learned optimizer against tuned Adam, {num_seeds} unseen seeds",
        caption=(
            "Training loss with 95 % intervals. Ratio: learned over Adam, below 1 is "
            f"better, with its interval. Adam has the best of {len(LEARNING_RATES)} "
            "learning rates, chosen for each column on these very seeds."
        ),
    )
    table.add_column("task\nsteps, why", no_wrap=True)
    for metric in ("mean", "final"):
        table.add_column(f"{metric} loss\nlearned", justify="right", no_wrap=True)
        table.add_column("\nAdam", justify="right", no_wrap=True)
        table.add_column("\nratio", justify="right", no_wrap=True)
    for result in results:
        about = f"{result.case.num_steps}, {result.case.reason}"
        if result.num_diverged:
            about += f", {result.num_diverged} diverged"
        table.add_row(
            f"{result.case.name}\n[dim]{about}[/dim]",
            *_cells(result.mean),
            *_cells(result.final),
        )
    return table


def _cells(score: Score) -> list[str]:
    low, high = score.ratio.low, score.ratio.high
    ratio = f"{score.ratio.value:.2f}\n{low:.2f}-{high:.2f}"
    # The winner is told by the whole interval, not by the value.
    if high < 1:
        ratio = f"[bold green]{ratio}[/bold green]"
    elif low > 1:
        ratio = f"[red]{ratio}[/red]"
    return [_text(score.learned), _text(score.adam), ratio]


def _text(interval: Interval) -> str:
    return f"{interval.value:.3g}\n±{(interval.high - interval.low) / 2:.1g}"


def write(
    directory: Path,
    results: Sequence[Result],
    about: Mapping[str, Any],
) -> None:
    """Writes `results.json` and `curves.png` into `directory`."""
    directory.mkdir(parents=True, exist_ok=True)
    content = {
        "schema": SCHEMA,
        **about,
        "learning_rates": list(LEARNING_RATES),
        "cases": [_described(result) for result in results],
    }
    text = json.dumps(_without_nonfinite(content), indent=1)
    (directory / "results.json").write_text(text + "\n")
    _draw(results, directory / "curves.png")


def _described(result: Result) -> dict[str, Any]:
    score = lambda s: {
        "learned": s.learned._asdict(),
        "adam": s.adam._asdict(),
        "ratio": s.ratio._asdict(),
        "adam_learning_rate": s.learning_rate,
    }
    return {
        "task": result.case.name,
        "num_steps": result.case.num_steps,
        "reason": result.case.reason,
        "mean_loss": score(result.mean),
        "final_loss": score(result.final),
        "num_diverged": result.num_diverged,
        "adam_mean_loss_by_learning_rate": result.learning_rate_losses.tolist(),
        "curves": {
            "learned": result.learned_curves.mean(axis=0).tolist(),
            "adam": result.adam_curves.mean(axis=0).tolist(),
        },
    }


def _without_nonfinite(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _without_nonfinite(v) for k, v in value.items()}
    if isinstance(value, list):
        return [_without_nonfinite(v) for v in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _draw(results: Sequence[Result], path: Path) -> None:
    """Draws every case's loss curves: the mean over seeds, and the middle 80 %."""
    from matplotlib.figure import Figure  # no window, no global state

    columns = min(3, len(results))
    rows = math.ceil(len(results) / columns)
    figure = Figure(figsize=(3.4 * columns, 2.9 * rows), layout="constrained")
    axes = list(figure.subplots(rows, columns, squeeze=False).flat)
    for axis, result in zip(axes, results, strict=False):
        rate = result.mean.learning_rate
        for curves, label, style in (
            (result.learned_curves, "learned", "-"),
            (result.adam_curves, f"Adam, lr {rate:.2g}", "--"),
        ):
            smooth = _smooth(curves)
            steps = np.arange(1, smooth.shape[1] + 1)
            low, high = np.quantile(smooth, [0.1, 0.9], axis=0)
            axis.plot(steps, smooth.mean(axis=0), style, label=label)
            axis.fill_between(steps, low, high, alpha=0.2)
        axis.set(
            title=f"{result.case.name} ({result.case.reason})",
            xlabel="step",
            yscale="log",
        )
        axis.title.set_fontsize(10)
        axis.legend(frameon=False, fontsize=8)
    for axis in axes[len(results) :]:
        axis.set_axis_off()
    figure.supylabel("training loss")
    figure.savefig(path, dpi=120)


def _smooth(curves: np.ndarray, decay: float = 0.8) -> np.ndarray:
    """Returns the exponential moving average along the steps; a gap once diverged."""
    smooth = np.where(np.isfinite(curves), curves, np.nan).astype(np.float64)
    for t in range(1, curves.shape[1]):
        smooth[:, t] = decay * smooth[:, t - 1] + (1 - decay) * smooth[:, t]
    return smooth
