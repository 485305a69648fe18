"""Tables of a model card, in Markdown, from the results of an evaluation.

    lopt evaluate general-1 --suite heldout --num-seeds 5 --ablate untrained --out OUT
    python -m benchmarks.model_card OUT/results.json

The first optimizer of the evaluation is the subject of the card, unless `--name` gives
another. The first table compares its final training loss with that of tuned Adam, of
the best tuned baseline and of its untrained theta, and its test metric with that of
tuned Adam. The summary has a row for each further optimizer, such as other seeds of the
recipe.
"""

import argparse
import json
import math
from pathlib import Path
from typing import Any

UNTRAINED = "-untrained"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("results", type=Path)
    parser.add_argument("--name")
    options = parser.parse_args()
    results = json.loads(options.results.read_text())
    names = [n for n in results["contenders"] if not n.endswith(UNTRAINED)]
    baselines = results["how"]["baselines"]
    for line in _task_table(results["cases"], options.name or names[0], baselines):
        print(line)
    print()
    for line in _summary_table(results, baselines):
        print(line)


def _task_table(
    cases: list[dict[str, Any]], name: str, baselines: list[str]
) -> list[str]:
    lines = [
        f"| task, steps | {name} | tuned Adam | ratio (95 % interval) | best of "
        f"{len(baselines)} tuned baselines | untrained | test: {name} | test: Adam |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for case in cases:
        ours, adam = case["methods"][name], case["methods"]["adam"]
        best = min(baselines, key=lambda b: _final(case, b))
        cells = [
            f"{case['name']}, {case['num_steps']}",
            _number(_final(case, name)),
            _number(_final(case, "adam")),
            _interval(ours["final_loss_ratio"]),
            f"{_number(_final(case, best))} ({best})",
            _number(_final(case, name + UNTRAINED)),
            _test(ours),
            _test(adam),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def _summary_table(results: dict[str, Any], baselines: list[str]) -> list[str]:
    lines = [
        "| | below tuned Adam | below the best baseline | ratio to tuned Adam, "
        "geometric mean | below its untrained theta | diverged runs |",
        "|---|---|---|---|---|---|",
    ]
    cases, num_seeds = results["cases"], results["how"]["num_seeds"]
    for name in results["contenders"]:
        ours = [_final(case, name) for case in cases]
        adam = [_final(case, "adam") for case in cases]
        best = [min(_final(case, b) for b in baselines) for case in cases]
        untrained = [_final(case, name + UNTRAINED) for case in cases]
        logs = [math.log(x / y) for x, y in zip(ours, adam, strict=True)]
        diverged = sum(case["methods"][name]["diverged"] for case in cases)
        cells = [
            name,
            _share_below(ours, adam),
            _share_below(ours, best),
            f"{math.exp(sum(logs) / len(logs)):.3f}",
            _share_below(ours, untrained),
            f"{round(diverged * num_seeds)} of {len(cases) * num_seeds}",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def _final(case: dict[str, Any], name: str) -> float:
    method = case["methods"].get(name)
    if method is None:
        return math.nan
    value = method["final_loss"]["value"]
    return math.inf if value is None else value  # null: a run has diverged


def _test(method: dict[str, Any]) -> str:
    """Test error in per cent if there is one, test loss otherwise."""
    if "test_error" in method:
        return f"{100 * method['test_error']['value']:.1f} %"
    return _number(method["test_loss"]["value"])


def _number(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:.3g}"


def _interval(ratio: dict[str, float]) -> str:
    return f"{ratio['value']:.2f} ({ratio['low']:.2f}-{ratio['high']:.2f})"


def _share_below(ours: list[float], theirs: list[float]) -> str:
    if any(map(math.isnan, theirs)):
        return "-"
    below = sum(x < y for x, y in zip(ours, theirs, strict=True))
    return f"{below} of {len(ours)}"


if __name__ == "__main__":
    main()
