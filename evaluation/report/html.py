"""Evaluation report as a self-contained HTML page."""

import base64
import html
from collections.abc import Mapping, Sequence
from typing import Any

from evaluation.report.figures import Drawn
from evaluation.report.results import Results, best_baseline
from evaluation.report.tables import number

# Figures have a white background. Dark mode inverts them, and the rotation by 180
# degrees restores the hues.
_STYLE = """
:root { color-scheme: light dark; --line: #8886; --soft: #8882; }
body { font: 16px/1.5 system-ui, sans-serif; margin: 0 auto; padding: 1rem;
       max-width: 72rem; }
p, dl { max-width: 62rem; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.15rem; margin-top: 2.2rem; }
.headline { font-size: 1.1rem; border-left: 4px solid; padding-left: .8rem; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-size: .85rem; width: 100%; }
th, td { padding: .3rem .4rem; text-align: right; border-bottom: 1px solid var(--line);
         white-space: nowrap; vertical-align: top; }
th:first-child, td:first-child { text-align: left; }
td small, th small { display: block; opacity: .75; font: .7rem/1.4 system-ui; }
.best { font-weight: bold; background: var(--soft); }
.best::before { content: "\\2605\\00a0"; }
figure { margin: 1rem 0; } figure img { width: 100%; min-width: 34rem; height: auto; }
figcaption, .note { font-size: .85rem; opacity: .85; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .2rem 1rem;
     font-size: .85rem; } dd { margin: 0; overflow-wrap: anywhere; }
@media (prefers-color-scheme: dark) {
  figure img { filter: invert(.92) hue-rotate(180deg); } }
@media print { body { max-width: none; } }
"""


def render(results: Results, drawn: Sequence[Drawn]) -> str:
    """Render the report.

    Args:
        results: Results of `evaluation.evaluate`.
        drawn: Figures to embed, from `figures.draw`.

    Returns:
        HTML document with inline styles and figures.
    """
    names = ", ".join(results["contenders"]) or "baselines"
    title = _escaped(f"{names} on the suite {results['how']['suite']}")
    headlines = "".join(
        f'<p class="headline">{_escaped(text)}</p>' for text in results["headlines"]
    )
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<link rel="icon" href="data:,">
<style>{_STYLE}</style>
</head>
<body>
<h1>{title}</h1>
{headlines}
<h2>Final training loss</h2>
{_case_table(results)}
<p class="note">Mean over {_escaped(results["how"]["num_seeds"])} unseen seeds, 95 %
intervals. A star marks the lowest loss, and all losses whose bootstrap interval of the
ratio to it, paired by seed, includes 1. Learning rate and schedule of the baselines are
tuned on other seeds; the optimizers under test are not tuned. A run that diverges
counts as the worst.</p>
<h2>Over all tasks</h2>
{_overall_table(results)}
<p class="note">On {_escaped("; ".join(results["how"]["judged_on"]))}. Loss:
interquartile mean over all runs, tuned Adam's mean being 1. Better than Adam: chance
that a run ends below one of tuned Adam's. Speed-up: how many times as many steps Adam
needs at the best constant learning rate of every moment (an oracle, and at most
{_escaped(results["how"]["longer"])}); geometric mean. Profile: area under the
performance profile.</p>
{"".join(_figure(each) for each in drawn)}
<h2>Test set</h2>
{_test_table(results)}
<p class="note">Loss and accuracy at the end, on batches of the test set; nothing was
tuned for them.</p>
<h2>Speed</h2>
{_speed_table(results)}
<p class="note">Wall-clock: the speed-up in steps times the time of a step of Adam over
that of the optimizer, gradient included.</p>
<h2>How it was run</h2>
{_how(results)}
</body>
</html>
"""


def _escaped(value: Any) -> str:
    return html.escape(str(value))


def _figure(drawn: Drawn) -> str:
    image = base64.b64encode(drawn.path.read_bytes()).decode()
    title, text = _escaped(drawn.title), _escaped(drawn.text)
    return (
        f'<h2>{title}</h2>\n<figure><div class="wide"><img alt="{title}. {text}" '
        f'src="data:image/svg+xml;base64,{image}"></div>'
        f"<figcaption>{text}</figcaption></figure>\n"
    )


def _rows(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    first = "".join(f"<th>{cell}</th>" for cell in head)
    body = "".join(f"<tr>{''.join(row)}</tr>\n" for row in rows)
    return (
        f'<div class="wide"><table><thead><tr>{first}</tr></thead>\n'
        f"<tbody>{body}</tbody></table></div>"
    )


def _cell(text: str, small: str = "", *, best: bool = False) -> str:
    mark = ' class="best"' if best else ""
    small = f"<small>{_escaped(small)}</small>" if small else ""
    return f"<td{mark}>{_escaped(text)}{small}</td>"


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
    return _cell(case["name"], f"{case['num_steps']} steps, {case['reason']}")


def _case_table(results: Results) -> str:
    names = list(results["methods"])
    rows = []
    for case in results["cases"]:
        row = [_about(case)]
        for name in names:
            text, ends = _interval(case["methods"][name]["final_loss"])
            gone = case["methods"][name]["diverged"]
            ends += f" {gone:.0%} diverged" if gone else ""
            row.append(_cell(text, ends, best=name in case["winners"]))
        rows.append(row)
    return _rows(["task", *map(_escaped, names)], rows)


def _overall_table(results: Results) -> str:
    methods = results["methods"]
    first = results["cases"][0]["methods"]
    rows = []
    for name in sorted(methods, key=lambda name: methods[name]["average_rank"]):
        found = methods[name]
        rows.append(
            [
                _cell(name, "" if found["is_baseline"] else "under test"),
                _cell(f"{found['average_rank']:.1f}"),
                _cell(*_interval(found["interquartile_mean"])),
                _cell(*_interval(found["probability_of_improvement"], ".0%")),
                _cell(f"{found['speed_up']:.2f}"),
                _cell(f"{found['profile_score']:.2f}"),
                _cell(f"{found['diverged']:.0%}"),
                _cell(number(first[name].get("ms"))),
                _cell(number(first[name].get("bytes_per_parameter"))),
            ]
        )
    head = ["optimizer", "rank", "loss", "better than Adam", "speed-up", "profile"]
    head += ["diverged", "ms a step", "bytes a parameter"]
    return _rows(head, rows)


def _test_table(results: Results) -> str:
    names = list(results["methods"])
    rows = []
    for case in results["cases"]:
        row = [_about(case)]
        for name in names:
            found = case["methods"][name]
            error = (found.get("test_error") or {}).get("value")
            right = "" if error is None else f"{1 - error:.1%} right"
            row.append(_cell(_interval(found["test_loss"])[0], right))
        rows.append(row)
    return _rows(["task", *map(_escaped, names)], rows)


def _speed_table(results: Results) -> str:
    names = [*results["contenders"], "adam"]
    rows = []
    for case in results["cases"]:
        row = [_about(case)]
        for name in names:
            found = case["methods"][name]
            row.append(_cell(*_interval(found["speed_up"], ".2f")))
            row.append(_cell(*_interval(found.get("wall_clock_speed_up"), ".2f")))
        best = best_baseline(case, results)
        row.append(_cell(*_interval(case["methods"][best]["speed_up"], ".2f")))
        row.append(_cell(best))
        rows.append(row)
    head = ["task"]
    for name in map(_escaped, names):
        head += [f"{name}<small>steps</small>", f"{name}<small>wall-clock</small>"]
    return _rows([*head, "best baseline<small>steps</small>", "which"], rows)


def _how(results: Results) -> str:
    def left_out(k, v):
        return k == "judged_on" or v is None or v == []

    how = {k: v for k, v in results["how"].items() if not left_out(k, v)}
    items = {**how, **{f"{n}: made by": c for n, c in results["contenders"].items()}}
    lines = "".join(
        f"<dt>{_escaped(str(key).replace('_', ' '))}</dt>"
        f"<dd>{_escaped(_text(value))}</dd>"
        for key, value in items.items()
    )
    return f"<dl>{lines}</dl>"


def _text(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{k}: {_text(v)}" for k, v in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(map(_text, value))
    return str(value)
