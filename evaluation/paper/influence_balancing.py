"""Influence balancing, figure 3."""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from typing_extensions import override

from evaluation.paper import looks
from evaluation.paper.experiment import Experiment, conclude
from evaluation.paper.jobs import training, with_estimators
from evaluation.paper.records import is_lower, settled, spread
from meta_train.core.truncation import Truncation
from meta_train.estimators import PES, RTRL, UORO, TruncatedBackprop
from meta_train.outer.outer_optimizer import OuterSGD
from tasks.systems.influence_balancing import InfluenceBalancing


@dataclass(frozen=True)
class InfluenceBalancingCurves(Experiment):
    """Meta-loss over outer updates, on a system with misleading short windows."""

    name = "influence-balancing"
    figure = "figure 3, and the long run in appendix D.2"
    claim = (
        "TBPTT with K = 1 and K = 10 diverges, and K = 100 moves in the right "
        "direction; PES with 1,000 particles follows RTRL, and UORO arrives later."
    )
    shows = (
        "Loss over 60,000 updates: TBPTT with short windows rises, PES and RTRL fall "
        "together, and UORO reaches them after about 30,000 updates."
    )
    differs = (
        "Episodes restart after 500 steps; the paper does not describe restarts. RTRL, "
        "UORO and TBPTT average ten staggered episodes (five for K = 100); UORO with "
        "one diverges. The loss is the mean over a whole episode."
    )
    scales: ClassVar = {
        "smoke": {
            "num_seeds": 1,
            "num_outer_steps": 20,
            "num_pairs": 4,
            "horizon": 100,
        },
        "small": {"num_outer_steps": 30_000},
        "paper": {"num_outer_steps": 300_000},
    }
    minutes: ClassVar = {"smoke": 0.2, "small": 1, "paper": 10}

    num_outer_steps: int = 300_000
    horizon: int = 500
    num_pairs: int = 500
    std: float = 0.1
    learning_rate: float = 1e-4

    @override
    def jobs(self):
        def window(length):
            return Truncation(length, self.horizon)

        estimators = {
            "PES": PES(window(1), num_pairs=self.num_pairs, std=self.std),
            "RTRL": RTRL(window(1), num_episodes=10),
            "UORO": UORO(window(1), num_episodes=10),
            "TBPTT, K = 1": TruncatedBackprop(window(1), num_episodes=10),
            "TBPTT, K = 10": TruncatedBackprop(window(10), num_episodes=10),
            "TBPTT, K = 100": TruncatedBackprop(window(100), num_episodes=5),
        }
        config = training(
            InfluenceBalancing(),
            estimators["PES"],
            OuterSGD(self.learning_rate),
            self.num_outer_steps,
            num_points=1_000,
        )
        return self.runs(with_estimators(config, estimators))

    @override
    def check(self, results):
        start = results.curve("RTRL")[1][0, 0]
        final = {name: results.final(name) for name in self.methods}
        level = start - 0.99 * (start - final["RTRL"].mean())
        arrival = {
            n: settled(*results.curve(n), level) for n in ("PES", "RTRL", "UORO")
        }
        parts: list[tuple[str, Any]] = [
            (f"{name} ends at {spread(final[name])}, start {start:.3g}", holds)
            for name, holds in (
                ("TBPTT, K = 1", bool((final["TBPTT, K = 1"] > start).all())),
                ("TBPTT, K = 10", bool((final["TBPTT, K = 10"] > start).all())),
                ("TBPTT, K = 100", bool((final["TBPTT, K = 100"] < start).all())),
            )
        ]
        when = ", ".join(f"{n} after {spread(a)}" for n, a in arrival.items())
        ratio = arrival["PES"].mean() / arrival["RTRL"].mean()
        text = f"below 99 % of RTRL's reduction for good: {when} updates"
        parts.append((text, 0.5 < ratio < 2))
        is_later = is_lower(arrival["RTRL"], arrival["UORO"])
        if not np.isfinite(arrival["UORO"]).all():
            is_later = None  # It has not arrived yet.
        parts.append(("UORO arrives, later than RTRL", is_later))
        return conclude(parts)

    @override
    def draw(self, results):
        figure, (linear, log) = looks.axes(2, size=4.4)
        for axis in (linear, log):
            for name in self.methods:
                steps, losses = results.curve(name)
                losses = np.where(losses < 1e3, losses, np.nan)
                looks.curve(axis, steps, losses, looks.look(name), name)
            axis.set(xlabel="outer update", ylabel="meta-loss", yscale="log")
        linear.set_xlim(0, min(10_000, self.num_outer_steps))
        log.set_xscale("symlog", linthresh=self.num_outer_steps / 1_000)
        log.set_xlim(0, self.num_outer_steps)
        looks.legend(linear, loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=3)
        return figure
