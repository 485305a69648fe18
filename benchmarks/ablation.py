"""Ablation of `LearnedMuon`: short meta-training runs without one part each.

    python -m benchmarks.ablation                       # all variants, 2 seeds
    python -m benchmarks.ablation --variants full no-statistics --num-seeds 4

Each variant is meta-trained on five tasks of the preset `general` and evaluated on its
validation tasks. The score is the mean log loss over the late part of the inner runs,
relative to the full architecture with the same seed; below zero is better. The table
gives its mean and standard error over seeds, then the mean for each validation task.
Results are appended to a JSONL file, and finished runs are not repeated.
"""

import argparse
import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree
from typing_extensions import override

from lopt.__main__ import tune_cpu_compiler
from lopt.learned_muon import FEATURES, OUTPUTS, LearnedMuon
from lopt.tensors import Clock
from meta_train.config import MetaTrainConfig
from meta_train.inner_training import InnerTraining
from meta_train.objectives import OBJECTIVES
from meta_train.preset_configs import CONFIGS
from meta_train.run import make_trainer
from meta_train.trainer import mean_losses

TASKS = (
    "digits-mlp-batches",
    "digits-autoencoder-batches",
    "diabetes-mlp-batches",
    "letters-lstm-small",
    "characters-attention",
)
NUM_EVALUATION_RUNS = 8
_TIME = FEATURES[:5]
_SHAPE = FEATURES[5:7]
_LOCAL, _MEAN = FEATURES[7:12], FEATURES[12:]


@dataclass(frozen=True)
class Ablated(LearnedMuon):
    """`LearnedMuon` with parts of theta held at their initial values."""

    fixed_features: tuple[str, ...] = ()
    """Inputs whose weights are not learned."""
    fixed_outputs: tuple[str, ...] = ()
    """Outputs that are not learned."""
    has_shared_bias: bool = False
    """Whether vectors, tables and matrices share one bias."""
    is_orthogonalized: bool = True
    """Whether matrices take an orthogonalized direction; otherwise Adafactor's."""
    has_tables: bool = True
    """Whether embeddings are tables; otherwise matrices."""

    def effective(self, theta: Any) -> Any:
        """Theta with fixed entries replaced by their initial values."""
        start = self.init_theta(jax.random.key(0))
        is_fixed = np.zeros((len(FEATURES), len(OUTPUTS)), bool)
        is_fixed[[FEATURES.index(name) for name in self.fixed_features]] = True
        is_fixed[:, [OUTPUTS.index(name) for name in self.fixed_outputs]] = True
        linear = jnp.where(is_fixed, start["linear"], theta["linear"])
        columns = [name in self.fixed_outputs for name in OUTPUTS]
        bias = jnp.where(np.asarray(columns), start["bias"], theta["bias"])
        if self.has_shared_bias:
            bias = jnp.broadcast_to(bias.mean(axis=0), bias.shape)
        if not self.is_orthogonalized:
            blend = OUTPUTS.index("blend_logit")
            linear, bias = linear.at[:, blend].set(0.0), bias.at[:, blend].set(20.0)
        return {"linear": linear, "bias": bias}

    @override
    def update_tensors(self, theta: Any, tensors: Any, shared: PyTree, clock: Clock):
        if not self.has_tables:
            tensors = [tensor._replace(name="") for tensor in tensors]
        return super().update_tensors(self.effective(theta), tensors, shared, clock)


VARIANTS: dict[str, Ablated] = {
    "full": Ablated(),
    "no-time": Ablated(fixed_features=_TIME),
    "no-shapes": Ablated(fixed_features=_SHAPE),
    "no-statistics": Ablated(fixed_features=_LOCAL + _MEAN),
    "no-mean-statistics": Ablated(fixed_features=_MEAN),
    "fixed-momentum": Ablated(fixed_outputs=("gradient_logit", "slow_logit")),
    "fixed-blend": Ablated(fixed_outputs=("blend_logit",)),
    "shared-bias": Ablated(has_shared_bias=True),
    "no-orthogonalization": Ablated(is_orthogonalized=False),
    "no-tables": Ablated(has_tables=False),
}


def main() -> None:
    """Run the variants and seeds without a result yet; print all results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--variants", nargs="+", choices=VARIANTS, default=VARIANTS)
    parser.add_argument("--num-seeds", type=int, default=2)
    parser.add_argument("--num-updates", type=int, default=400)
    parser.add_argument("--out", type=Path, default=Path("runs/ablation.jsonl"))
    options = parser.parse_args()
    tune_cpu_compiler()
    options.out.parent.mkdir(parents=True, exist_ok=True)
    lines = options.out.read_text().splitlines() if options.out.exists() else []
    rows = [json.loads(line) for line in lines]
    done = {(row["variant"], row["seed"], row["num_updates"]) for row in rows}
    for seed in range(options.num_seeds):
        for name in options.variants:
            if (name, seed, options.num_updates) in done:
                continue
            losses = _run(VARIANTS[name], options.num_updates, seed)
            row = {
                "variant": name,
                "seed": seed,
                "num_updates": options.num_updates,
                "losses": losses,
            }
            rows.append(row)
            with options.out.open("a") as file:
                print(json.dumps(row), file=file)
            print(f"{name}, seed {seed}: {np.mean(list(losses.values())):.3f}")
    _print_table([r for r in rows if r["num_updates"] == options.num_updates])


def _run(optimizer: Ablated, num_updates: int, seed: int) -> dict[str, float]:
    """Meta-train one variant; return its validation losses."""
    general = CONFIGS["general"]
    chosen = [
        dataclasses.replace(system, optimizer=optimizer)
        for name, system in zip(general.names, general.systems, strict=True)
        if name in TASKS and isinstance(system, InnerTraining)
    ]
    config: MetaTrainConfig = dataclasses.replace(
        general, systems=tuple(chosen), num_outer_steps=num_updates
    )
    trainer = make_trainer(config)
    data = trainer.load()
    state, _ = trainer.run(data, trainer.init(data, seed), num_updates)
    wrap = OBJECTIVES[config.objective]
    systems = tuple(wrap(system) for system in config.validation_systems)
    losses = mean_losses(
        systems,
        tuple(system.load() for system in systems),
        state.result,
        config.horizon // 2,
        NUM_EVALUATION_RUNS,
        jax.random.key(1),
    )
    return dict(zip(config.validation_tasks, losses.tolist(), strict=True))


def _print_table(rows: list[dict[str, Any]]) -> None:
    found = {(r["variant"], r["seed"]): list(r["losses"].values()) for r in rows}
    for name in VARIANTS:
        pairs = [
            np.subtract(losses, found["full", seed])
            for (variant, seed), losses in found.items()
            if variant == name and ("full", seed) in found
        ]
        if pairs:
            means = np.mean(pairs, axis=1)
            has_error = len(means) > 1
            error = np.std(means, ddof=1) / len(means) ** 0.5 if has_error else np.nan
            each = "".join(f"{x:8.2f}" for x in np.mean(pairs, axis=0))
            print(f"{name:22}{means.mean():8.3f} ± {error:.3f}{each}")


if __name__ == "__main__":
    main()
