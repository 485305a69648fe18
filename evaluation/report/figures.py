"""Figures of an evaluation, drawn from its results as PNG and SVG."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullLocator, StrMethodFormatter

from evaluation.report.results import Results, best_baseline

# Methods are distinguishable without color: contenders have thick solid lines with
# markers, baselines thin lines with these styles.
_STYLES = (
    *("--", ":", "-.", (0, (5, 1)), (0, (1, 1)), (0, (3, 1, 1, 1)), (0, (8, 3))),
    (0, (6, 2, 1, 2, 1, 2)),
)
_MARKERS = "osD^vP*X"


class Drawn(NamedTuple):
    """A figure that has been written to disk.

    Attributes:
        title: Heading in the report.
        text: Caption.
        path: Path of the SVG file; the PNG file is next to it.
    """

    title: str
    text: str
    path: Path


@rc_context({"text.parse_math": False, "svg.fonttype": "none"})
def draw(results: Results, directory: Path) -> list[Drawn]:
    """Draw all figures into `directory`, as `NAME.png` and `NAME.svg`.

    Names of tasks and optimizers are drawn literally, without TeX markup.
    """
    directory.mkdir(parents=True, exist_ok=True)
    seeds = results["how"]["num_seeds"]
    figures = {
        "curves": (
            "Training loss",
            f"Mean over {seeds} unseen seeds, and the middle 80 %, smoothed. Adam and "
            "the best baseline of the task are shown, tuned for the final loss.",
            _draw_curves(results),
        ),
        "test": (
            "Test loss",
            "On the test set, mean over seeds. Nothing was tuned for it.",
            _draw_test(results),
        ),
        "profile": (
            "Performance profile",
            "Fraction of tasks on which an optimizer reaches the target within the "
            "given multiple of the steps of the fastest. Target: the loss of tuned "
            "Adam after three quarters of its run.",
            _draw_profile(results),
        ),
        "generalisation": (
            "Speed-up by task",
            "Speed-up over Adam at the best constant learning rate of every moment; "
            "1 is Adam. Bars are 95 % intervals.",
            _draw_generalisation(results),
        ),
        "sensitivity": (
            "Learning rates of the baselines",
            "Final loss at every learning rate of the grid, with the better of the two "
            "schedules. Dots mark the selected learning rates.",
            _draw_sensitivity(results),
        ),
        "cost": (
            "Cost of a step",
            "Milliseconds of a step on the first task, gradient included, and bytes of "
            "optimizer state for each parameter.",
            _draw_cost(results),
        ),
    }
    drawn = []
    for name, (title, text, figure) in figures.items():
        path = directory / f"{name}.svg"
        figure.savefig(path)
        # The layout is done, and repeating it would take most of the time.
        figure.set_layout_engine("none")
        figure.savefig(path.with_suffix(".png"), dpi=110)
        drawn.append(Drawn(title, text, path))
    return drawn


def _look(results: Results, name: str) -> dict[str, Any]:
    """Line properties of a method, the same in all figures."""
    names = list(results["methods"])
    baselines = [n for n in names if results["methods"][n]["is_baseline"]]
    contenders = [n for n in names if n not in baselines]
    look: dict[str, Any] = {"color": f"C{names.index(name) % 10}"}
    if name in contenders:
        marker = _MARKERS[contenders.index(name) % len(_MARKERS)]
        return look | {"ls": "-", "lw": 2.2, "marker": marker, "markevery": 20}
    return look | {"ls": _STYLES[baselines.index(name) % len(_STYLES)], "lw": 1.3}


def _grid(num: int) -> tuple[Figure, list[Axes]]:
    columns = min(3, num)
    rows = math.ceil(num / columns)
    size = (3.4 * columns + 0.2, 2.7 * rows + 0.5)
    figure = Figure(figsize=size, layout="constrained")
    axes = list(figure.subplots(rows, columns, squeeze=False).flat)
    for axis in axes[num:]:
        axis.set_axis_off()
    return figure, axes[:num]


def _shown(results: Results, case: Mapping[str, Any]) -> list[str]:
    """Methods to show for a task: contenders, Adam and the best baseline."""
    best = best_baseline(case, results)
    return list(dict.fromkeys([*results["contenders"], "adam", best]))


def _draw_curves(results: Results) -> Figure:
    figure, axes = _grid(len(results["cases"]))
    for axis, case in zip(axes, results["cases"], strict=True):
        for name in _shown(results, case):
            curve = case["methods"][name]["curve"]
            look = _look(results, name)
            axis.plot(curve["steps"], curve["mean"], label=name, ms=4, **look)
            axis.fill_between(
                *(curve[key] for key in ("steps", "low", "high")),
                color=look["color"],
                alpha=0.15,
                lw=0,
            )
        axis.set(title=_title(case), yscale="log")
        _finish(axis)
    figure.supxlabel("step", fontsize=9)
    figure.supylabel("training loss", fontsize=9)
    return figure


def _draw_test(results: Results) -> Figure:
    figure, axes = _grid(len(results["cases"]))
    for axis, case in zip(axes, results["cases"], strict=True):
        for name in _shown(results, case):
            curve = case["methods"][name]["test_curve"]
            losses = [math.nan if x is None else x for x in curve["loss"]]
            look = _look(results, name)
            look["markevery"] = 1
            axis.plot(curve["steps"], losses, label=name, ms=4, **look)
        axis.set(title=_title(case), yscale="log")
        _finish(axis)
    figure.supxlabel("step", fontsize=9)
    figure.supylabel("test loss", fontsize=9)
    return figure


def _draw_profile(results: Results) -> Figure:
    figure = Figure(figsize=(6.4, 4.0), layout="constrained")
    axis = figure.subplots()
    profile = results["profile"]
    for name, shares in profile["shares"].items():
        axis.step(
            profile["taus"],
            shares,
            where="post",
            label=name,
            ms=5,
            **_look(results, name),
        )
    axis.set(xlabel="times the fewest steps", ylabel="share of tasks", ylim=(0, 1.03))
    axis.legend(fontsize=8, frameon=False, loc="upper left", bbox_to_anchor=(1, 1))
    axis.spines[["top", "right"]].set_visible(False)
    return figure


def _draw_generalisation(results: Results) -> Figure:
    cases, names = results["cases"], [*results["contenders"], "adam"]
    figure = Figure(figsize=(6.4, 0.5 + 0.45 * len(cases)), layout="constrained")
    axis = figure.subplots()
    for i, name in enumerate(names):
        look = _look(results, name)
        for row, case in enumerate(cases):
            found = case["methods"][name]["speed_up"]
            y = row + 0.6 * ((i + 0.5) / len(names) - 0.5)
            if found["low"] is not None:
                axis.plot([found["low"], found["high"]], [y, y], color=look["color"])
            axis.plot(
                found["value"],
                y,
                look.get("marker", "|"),
                color=look["color"],
                ms=6,
                label=None if row else "adam, tuned" if name == "adam" else name,
            )
    axis.axvline(1.0, color="0.6", lw=0.8, ls=":")
    axis.set_yticks(range(len(cases)))
    labels = [_title(c, f", {c['num_steps']}") for c in cases]
    axis.set_yticklabels(labels, fontsize=8)
    axis.invert_yaxis()
    axis.set(xlabel="speed-up", xscale="log")
    low, high = map(math.log2, axis.get_xlim())
    powers = range(math.ceil(min(low, -1)), math.floor(max(high, 1)) + 1)
    powers = [k for k in powers if k % (1 + len(powers) // 8) == 0]
    axis.set_xticks(
        [2.0**k for k in powers], [f"1/{2**-k}" if k < 0 else f"{2**k}" for k in powers]
    )
    axis.minorticks_off()
    axis.legend(fontsize=8, frameon=False)
    axis.spines[["top", "right"]].set_visible(False)
    return figure


def _title(case: Mapping[str, Any], steps: str = "") -> str:
    name, reason = case["name"], case["reason"]
    return f"{name}{steps}" + ("" if name.endswith(reason) else f" ({reason})")


def _draw_sensitivity(results: Results) -> Figure:
    figure, axes = _grid(len(results["cases"]))
    for axis, case in zip(axes, results["cases"], strict=True):
        for name, tuning in case["tuning"].items():
            look = _look(results, name)
            best = _lowest(*tuning["final"].values())
            rates = tuning["learning_rates"]
            axis.plot(rates, best, label=name, **look)
            at = min(range(len(best)), key=lambda i: best[i])
            axis.plot(rates[at], best[at], "o", ms=4, color=look["color"])
        start = max(case["methods"]["adam"]["curve"]["mean"][:1], default=None)
        axis.set(title=_title(case), xscale="log", yscale="log")
        if start is not None:
            axis.set_ylim(top=2 * start)
        _finish(axis, legend=False)
    axes[0].legend(fontsize=5.5, frameon=False)
    figure.supxlabel("learning rate", fontsize=9)
    figure.supylabel("final training loss", fontsize=9)
    return figure


def _lowest(*columns: Sequence[float | None]) -> list[float]:
    def number(x):
        return math.inf if x is None else x

    return [min(map(number, row)) for row in zip(*columns, strict=True)]


def _draw_cost(results: Results) -> Figure:
    first = results["cases"][0]["methods"]
    names = [name for name, found in first.items() if found.get("ms") is not None]
    figure = Figure(figsize=(6.4, 0.8 + 0.28 * len(names)), layout="constrained")
    axes = figure.subplots(1, 2, sharey=True)
    for axis, key, label in zip(
        axes,
        ("ms", "bytes_per_parameter"),
        ("ms a step", "bytes of state a parameter"),
        strict=True,
    ):
        values = [first[name][key] for name in names]
        contender = [name in results["contenders"] for name in names]
        colors = ["C0" if ours else "0.7" for ours in contender]
        bars = axis.barh(names, values, color=colors)
        axis.bar_label(bars, [f" {v:.3g}" for v in values], fontsize=8)
        axis.set_xlabel(label)
        axis.margins(x=0.2)
        axis.spines[["top", "right"]].set_visible(False)
    axes[0].invert_yaxis()
    return figure


def _finish(axis: Axes, *, legend: bool = True) -> None:
    axis.title.set_fontsize(9)
    axis.tick_params(labelsize=8)
    axis.spines[["top", "right"]].set_visible(False)
    for one, limits in ((axis.xaxis, axis.get_xlim()), (axis.yaxis, axis.get_ylim())):
        if one.get_scale() == "log":
            # Few ticks with plain labels: matplotlib's default ticks and labels on
            # log axes take half of the drawing time.
            far = limits[1] > 50 * limits[0]
            one.set_major_locator(LogLocator(subs=(1.0,) if far else (1.0, 2.0, 5.0)))
            one.set_major_formatter(StrMethodFormatter("{x:g}"))
            one.set_minor_locator(NullLocator())
    if legend:
        axis.legend(frameon=False, fontsize=7)
