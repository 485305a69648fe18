"""Evaluation report as a self-contained HTML page."""

from collections.abc import Mapping, Sequence
from typing import Any

from evaluation.report.figures import Drawn
from evaluation.report.page import cell, document, escaped, figure, table
from evaluation.report.results import Results, best_baseline
from evaluation.report.tables import number


def render(results: Results, drawn: Sequence[Drawn]) -> str:
    """Render the report.

    Args:
        results: Results of `evaluation.evaluate`.
        drawn: Figures to embed, from `figures.draw`.

    Returns:
        HTML document with inline styles and figures.
    """
    names = ", ".join(results["contenders"]) or "baselines"
    headlines = "".join(
        f'<p class="headline">{escaped(text)}</p>' for text in results["headlines"]
    )
    body = f"""{headlines}
<h2>Final training loss</h2>
{_case_table(results)}
<p class="note">Mean over {escaped(results["how"]["num_seeds"])} unseen seeds, 95 %
intervals. A star marks the lowest loss, and all losses whose bootstrap interval of the
ratio to it, paired by seed, includes 1. Learning rate and schedule of the baselines are
tuned on other seeds; the optimizers under test are not tuned. A run that diverges
counts as the worst.</p>
<h2>Over all tasks</h2>
{_overall_table(results)}
<p class="note">On {escaped("; ".join(results["how"]["judged_on"]))}. Loss:
interquartile mean over all runs, tuned Adam's mean being 1. Better than Adam: chance
that a run ends below one of tuned Adam's. Speed-up: how many times as many steps Adam
needs at the best constant learning rate of every moment (an oracle, and at most
{escaped(results["how"]["longer"])}); geometric mean. Profile: area under the
performance profile.</p>
{"".join(map(figure, drawn))}
<h2>Test set</h2>
{_test_table(results)}
<p class="note">Loss and accuracy at the end, on batches of the test set; nothing was
tuned for them.</p>
<h2>Speed</h2>
{_speed_table(results)}
<p class="note">Wall-clock: the speed-up in steps times the time of a step of Adam over
that of the optimizer, gradient included.</p>
<h2>How it was run</h2>
{_how(results)}"""
    return document(f"{names} on the suite {results['how']['suite']}", body)


def _interval(found: Mapping[str, Any] | None, digits: str = ".3g") -> tuple[str, str]:
    if found is None:
        return "-", ""
    if found["value"] is None:
        return "diverged", ""
    if found["low"] is None or found["high"] is None:
        return format(found["value"], digits), ""
    # With the format `.3g`, the ends get one significant digit less than the value.
    fewer = digits.replace("3", "2")
    ends = f"{found['low']:{fewer}} to {found['high']:{fewer}}"
    return format(found["value"], digits), ends


def _about(case: Mapping[str, Any]) -> str:
    return cell(case["name"], f"{case['num_steps']} steps, {case['reason']}")


def _case_table(results: Results) -> str:
    names = list(results["methods"])
    rows = []
    for case in results["cases"]:
        row = [_about(case)]
        for name in names:
            text, ends = _interval(case["methods"][name]["final_loss"])
            gone = case["methods"][name]["diverged"]
            ends += f" {gone:.0%} diverged" if gone else ""
            row.append(cell(text, ends, best=name in case["winners"]))
        rows.append(row)
    return table(["task", *map(escaped, names)], rows)


def _overall_table(results: Results) -> str:
    methods = results["methods"]
    first = results["cases"][0]["methods"]
    rows = []
    for name in sorted(methods, key=lambda name: methods[name]["average_rank"]):
        found = methods[name]
        rows.append(
            [
                cell(name, "" if found["is_baseline"] else "under test"),
                cell(f"{found['average_rank']:.1f}"),
                cell(*_interval(found["interquartile_mean"])),
                cell(*_interval(found["probability_of_improvement"], ".0%")),
                cell(f"{found['speed_up']:.2f}"),
                cell(f"{found['profile_score']:.2f}"),
                cell(f"{found['diverged']:.0%}"),
                cell(number(first[name].get("ms"))),
                cell(number(first[name].get("bytes_per_parameter"))),
            ]
        )
    head = ["optimizer", "rank", "loss", "better than Adam", "speed-up", "profile"]
    head += ["diverged", "ms a step", "bytes a parameter"]
    return table(head, rows)


def _test_table(results: Results) -> str:
    names = list(results["methods"])
    rows = []
    for case in results["cases"]:
        row = [_about(case)]
        for name in names:
            found = case["methods"][name]
            error = (found.get("test_error") or {}).get("value")
            right = "" if error is None else f"{1 - error:.1%} right"
            row.append(cell(_interval(found["test_loss"])[0], right))
        rows.append(row)
    return table(["task", *map(escaped, names)], rows)


def _speed_table(results: Results) -> str:
    names = [*results["contenders"], "adam"]
    rows = []
    for case in results["cases"]:
        row = [_about(case)]
        for name in names:
            found = case["methods"][name]
            row.append(cell(*_interval(found["speed_up"], ".2f")))
            row.append(cell(*_interval(found.get("wall_clock_speed_up"), ".2f")))
        best = best_baseline(case, results)
        row.append(cell(*_interval(case["methods"][best]["speed_up"], ".2f")))
        row.append(cell(best))
        rows.append(row)
    head = ["task"]
    for name in map(escaped, names):
        head += [f"{name}<small>steps</small>", f"{name}<small>wall-clock</small>"]
    return table([*head, "best baseline<small>steps</small>", "which"], rows)


def _how(results: Results) -> str:
    def left_out(k, v):
        return k == "judged_on" or v is None or v == []

    how = {k: v for k, v in results["how"].items() if not left_out(k, v)}
    items = {**how, **{f"{n}: made by": c for n, c in results["contenders"].items()}}
    lines = "".join(
        f"<dt>{escaped(str(key).replace('_', ' '))}</dt>"
        f"<dd>{escaped(_text(value))}</dd>"
        for key, value in items.items()
    )
    return f"<dl>{lines}</dl>"


def _text(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{k}: {_text(v)}" for k, v in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(map(_text, value))
    return str(value)
