"""Compute the scores of a report from the curves of an evaluation."""

import datetime
import math
import platform
from collections.abc import Mapping, Sequence
from importlib import metadata
from typing import Any

import jax
import numpy as np

from evaluation import statistics
from evaluation.baselines import (
    BASELINES,
    NUM_RATES,
    RATES_PER_DECADE,
    SCHEDULES,
)
from evaluation.statistics import Interval
from evaluation.suites import TRAINED
from evaluation.training.cases import REFERENCE_EXTENSION, CaseRuns, Method
from evaluation.training.grid_search import METRICS
from evaluation.training.plan import REFERENCE, Plan

SCHEMA = 4
_TARGET = 0.75  # Fraction of the reference's run that defines the target loss.
_MOST_POINTS = 100  # Maximum number of points of a reported curve.
_TAUS = np.linspace(1.0, statistics.LARGEST_TAU, 61)


def score(
    found: Sequence[CaseRuns],
    plan: Plan,
    suite: str,
    cards: Mapping[str, Mapping[str, Any]],
) -> dict[str, Any]:
    """Compute all reported scores of an evaluation.

    Args:
        found: Results of each case, from `evaluation.training.cases.run`.
        plan: Settings of the evaluation.
        suite: Name of the suite.
        cards: Metadata of each contender, by name; empty if it has none.

    Returns:
        Dictionary with these entries:

        - `schema`: version of this layout.
        - `headlines`, `summaries`: for each contender, a sentence and its numbers.
        - `contenders`: `cards`.
        - `methods`: for each optimizer, its scores aggregated over tasks.
        - `profile`: performance profile of each optimizer.
        - `cases`: for each task, the scores, curves and tuning of all optimizers.
        - `how`: settings, versions and device.

        Aggregates exclude tasks that a contender was trained on, unless there are no
        others.
    """
    cases = [_case(runs) for runs in found]
    # Performance on meta-training tasks does not measure generalization.
    others = [i for i, c in enumerate(cases) if c["reason"] != TRAINED]
    judged = others or list(range(len(cases)))
    methods, profile = _overall([found[i] for i in judged], [cases[i] for i in judged])
    summaries = {
        name: _summary(name, [found[i] for i in judged], [cases[i] for i in judged])
        for name in cards
    }
    kind = "tasks" if len(judged) == len(cases) else "tasks it was not trained on"
    return {
        "schema": SCHEMA,
        "headlines": [_headline(n, s, kind, plan) for n, s in summaries.items()],
        "summaries": summaries,
        "contenders": {name: dict(card) for name, card in cards.items()},
        "methods": methods,
        "profile": profile,
        "cases": cases,
        "how": {
            "suite": suite,
            "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="minutes"),
            **plan._asdict(),
            "reference": REFERENCE,
            "longer": REFERENCE_EXTENSION,
            "learning_rates": f"{NUM_RATES}, {RATES_PER_DECADE} to a decade, and more "
            "until the best is inside",
            "schedules": list(SCHEDULES),
            "judged_on": [cases[i]["label"] for i in judged],
            "device": jax.devices()[0].device_kind,
            "python": platform.python_version(),
            "versions": {n: metadata.version(n) for n in ("lopt", "jax", "optax")},
        },
    }


def _case(runs: CaseRuns) -> dict[str, Any]:
    case, reference = runs.case, runs.methods[REFERENCE]
    envelope = statistics.envelope(runs.longer)
    target = _target(reference)
    return {
        "name": case.name,
        "label": case.label,
        "num_steps": case.num_steps,
        "reason": case.reason,
        "target": target,
        "winners": _winners(runs),
        "methods": {
            name: {
                **_losses(method, reference),
                **_speed(runs, name, envelope),
                "steps_to_target": statistics.steps_to(
                    target, method.curves["final"].train_loss
                ),
                "diverged": float(_diverged(method).mean()),
                "settings": method.settings,
                "curve": _curve(method.curves["final"].train_loss),
                "test_curve": _test_curve(method),
            }
            for name, method in runs.methods.items()
        },
        "tuning": {
            tuned.name: {
                "learning_rates": tuned.rates.tolist(),
                "rounds": tuned.num_rounds,
                "at_edge": bool(tuned.edges()),
                **{
                    metric: dict(zip(SCHEDULES, losses.T.tolist(), strict=True))
                    for metric, losses in tuned.losses.items()
                },
            }
            for tuned in runs.tuned
        },
    }


def _values(method: Method) -> dict[str, np.ndarray]:
    final = method.curves["final"]
    gone = statistics.is_diverged(final.train_loss)

    def worst(x):
        return np.where(gone | ~np.isfinite(x), np.inf, x)

    values = {
        f"{metric}_loss": of(method.curves[metric].train_loss)
        for metric, of in METRICS.items()
    }
    values["test_loss"] = worst(final.test_loss[:, -1])
    if not np.isnan(final.test_error[:, -1]).all():
        values["test_error"] = np.where(gone, 1.0, final.test_error[:, -1])
    return values


def _winners(runs: CaseRuns) -> list[str]:
    """Find the method with the lowest final loss, and those not significantly above.

    Significance is from the bootstrap interval of the ratio over paired seeds. Pairing
    removes the variance between seeds that all methods share.
    """
    finals = {name: _values(m)["final_loss"] for name, m in runs.methods.items()}
    lowest = min(finals, key=lambda name: finals[name].mean())
    if not np.isfinite(finals[lowest].mean()):
        return []

    def ratio(name):
        return statistics.ratio_interval(finals[name], finals[lowest])

    return [name for name in finals if name == lowest or ratio(name).low <= 1]


def _losses(method: Method, reference: Method) -> dict[str, Any]:
    ours, theirs = _values(method), _values(reference)
    content: dict[str, Any] = {
        name: statistics.mean_interval(values) for name, values in ours.items()
    }
    for name in ("mean_loss", "final_loss"):
        content[f"{name}_ratio"] = statistics.ratio_interval(ours[name], theirs[name])
    return content


def _speed(runs: CaseRuns, name: str, envelope: statistics.Envelope) -> dict[str, Any]:
    method, reference = runs.methods[name], runs.methods[REFERENCE]
    steps = statistics.speed_up(method.curves["final"].train_loss, envelope)
    content: dict[str, Any] = {"speed_up": steps}
    if method.cost is not None and reference.cost and runs.gradient:
        ms = runs.gradient.ms + method.cost.ms
        slower = ms / (runs.gradient.ms + reference.cost.ms)
        content |= {
            "wall_clock_speed_up": Interval(*(x / slower for x in steps)),
            "ms": ms,
            "bytes_per_parameter": method.cost.bytes_per_parameter,
        }
    return content


def _diverged(method: Method) -> np.ndarray:
    return statistics.is_diverged(method.curves["final"].train_loss)


def _target(reference: Method) -> float:
    """Lowest mean smoothed loss of the tuned reference in the first 75% of its run."""
    mean = statistics.smooth(reference.curves["final"].train_loss).mean(axis=0)
    return float(np.minimum.accumulate(mean)[round(_TARGET * (len(mean) - 1))])


def _curve(curves: np.ndarray) -> dict[str, Any]:
    """Compute the mean and the 10% and 90% quantiles of the smoothed curves.

    Curves are subsampled to at most 100 steps.
    """
    rows = np.unique(np.linspace(0, curves.shape[1] - 1, _MOST_POINTS).astype(int))
    smoothed = statistics.smooth(curves)[:, rows]
    smoothed = np.where(np.isfinite(smoothed), smoothed, np.nan)
    # Truncate where the first run diverges.
    kept = np.isfinite(smoothed).all(axis=0)
    low, high = np.quantile(smoothed[:, kept], [0.1, 0.9], axis=0)
    return {
        "steps": (rows[kept] + 1).tolist(),
        "mean": smoothed[:, kept].mean(axis=0).tolist(),
        "low": low.tolist(),
        "high": high.tolist(),
    }


def _test_curve(method: Method) -> dict[str, Any]:
    final = method.curves["final"]
    num_steps, num = final.train_loss.shape[1], final.test_loss.shape[1]
    return {
        "steps": [num_steps * (i + 1) // num for i in range(num)],
        "loss": final.test_loss.mean(axis=0).tolist(),
        "error": final.test_error.mean(axis=0).tolist(),
    }


def _overall(
    found: Sequence[CaseRuns], cases: Sequence[Mapping[str, Any]]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Compute the scores of each method over tasks, and the performance profile."""
    names = list(found[0].methods)
    finals = {
        name: [_values(runs.methods[name])["final_loss"] for runs in found]
        for name in names
    }
    # Divide by the mean final loss of the reference, so that tasks can be pooled.
    units = [values.mean() for values in finals[REFERENCE]]
    pooled = {
        name: [v / u for v, u in zip(values, units, strict=True)]
        for name, values in finals.items()
    }
    means = np.array([[v.mean() for v in finals[name]] for name in names])
    times = np.array(
        [[case["methods"][name]["steps_to_target"] for case in cases] for name in names]
    )
    ratios = statistics.performance_ratios(times)
    areas, ranks = statistics.profile_scores(ratios), statistics.average_ranks(means)
    methods = {}
    for i, name in enumerate(names):
        each = [case["methods"][name] for case in cases]
        ups = [x["speed_up"].value for x in each]
        methods[name] = {
            "is_baseline": name in BASELINES,
            "interquartile_mean": statistics.pooled_interquartile_mean(pooled[name]),
            "probability_of_improvement": statistics.probability_of_improvement(
                finals[name], finals[REFERENCE]
            ),
            "speed_up": float(np.exp(np.mean(np.log(ups)))),
            "profile_score": float(areas[i]),
            "average_rank": float(ranks[i]),
            "diverged": float(np.mean([x["diverged"] for x in each])),
        }
    shares = statistics.performance_profile(ratios, _TAUS)
    profile = dict(zip(names, shares.tolist(), strict=True))
    return methods, {"taus": _TAUS.tolist(), "shares": profile}


def _summary(
    name: str, found: Sequence[CaseRuns], cases: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """Summarize a contender over tasks.

    The summary counts the tasks on which its final training loss is below that of the
    tuned reference and of the best tuned baseline, and those on which its test metrics
    are no worse. It also has the geometric mean of loss ratios (infinite unless all are
    finite and positive) and the fraction of diverged runs.
    """
    ratios = [case["methods"][name]["final_loss_ratio"] for case in cases]
    means = [
        {n: _values(m)["final_loss"].mean() for n, m in runs.methods.items()}
        for runs in found
    ]
    baselines = [[x for n, x in each.items() if n in BASELINES] for each in means]
    values = [ratio.value for ratio in ratios]
    finite = all(math.isfinite(x) and x > 0 for x in values)
    return {
        "num_tasks": len(cases),
        "below_reference": sum(x < 1 for x in values),
        "significantly_below": sum(ratio.high < 1 for ratio in ratios),
        "significantly_above": sum(not ratio.low <= 1 for ratio in ratios),
        "below_best_baseline": sum(
            bool(each[name] < min(best))
            for each, best in zip(means, baselines, strict=True)
        ),
        "num_baselines": len(baselines[0]),
        "geometric_mean_ratio": float(np.exp(np.mean(np.log(values))))
        if finite
        else math.inf,
        "test_no_worse": sum(_is_test_no_worse(runs, name) for runs in found),
        "diverged": float(np.mean([c["methods"][name]["diverged"] for c in cases])),
    }


def _is_test_no_worse(runs: CaseRuns, name: str) -> bool:
    """Whether test loss or test error is not significantly above the reference's.

    Significance is from Student's t interval of the difference over paired seeds. With
    one seed, the sign of the difference decides.
    """
    ours, theirs = _values(runs.methods[name]), _values(runs.methods[REFERENCE])

    def is_no_worse(metric: str) -> bool:
        difference = statistics.mean_interval(ours[metric] - theirs[metric])
        low = difference.value if math.isnan(difference.low) else difference.low
        return bool(low <= 0)

    return any(is_no_worse(m) for m in ("test_loss", "test_error") if m in ours)


def _headline(name: str, summary: Mapping[str, Any], kind: str, plan: Plan) -> str:
    """Summarize the results of a contender in one sentence."""
    num, tuned = summary["num_tasks"], "tuned" if name in plan.tuned else "untuned"
    text = (
        f"{name} ({tuned}) on {num} {kind}: final training loss below tuned Adam's on "
        f"{summary['below_reference']} of {num} (significantly below on "
        f"{summary['significantly_below']}, above on "
        f"{summary['significantly_above']}), "
        f"{summary['geometric_mean_ratio']:.2f} times Adam's in the geometric mean; "
        f"below the best of {summary['num_baselines']} tuned baselines on "
        f"{summary['below_best_baseline']}; test loss or accuracy no worse than tuned "
        f"Adam's on {summary['test_no_worse']}"
    )
    if summary["diverged"] > 0:
        text += f"; {summary['diverged']:.0%} of its runs diverged"
    return text + "."
