"""Ablation of `LearnedMuon`: short meta-training runs without, or with, one part each.

    python -m benchmarks.ablation                       # all variants, 3 seeds
    python -m benchmarks.ablation --variants full no-statistics --num-seeds 4

Each variant is meta-trained on five tasks of the preset `general` and evaluated on the
validation tasks of that preset. Three variants add features that `LearnedMuon` does not
have. The score is the `late-log` objective (log loss, with late steps weighted more)
minus that of the full architecture with the same seed. Negative scores are better. The
table lists the mean and standard error of the score over seeds, then the mean for each
validation task. Results are appended to a JSONL file. Runs with a result in that file
are not repeated.
"""

import argparse
import dataclasses
import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PRNGKeyArray, PyTree
from typing_extensions import override

from lopt.adapter import StepInfo
from lopt.cli.main import tune_cpu_compiler
from lopt.optimizers.learned_muon import OUTPUTS, LearnedMuon
from lopt.optimizers.tensor_statistics import FEATURES
from meta_train.config.preset_configs import CONFIGS
from meta_train.core.inner_training import InnerTraining
from meta_train.core.objectives import OBJECTIVES
from meta_train.core.wrapper import SystemWrapper
from meta_train.outer.trainer import mean_losses
from tasks.base import Data, Horizon, Input, Loss, State, Theta

TASKS = (
    "digits-mlp-batches",
    "digits-autoencoder-batches",
    "diabetes-mlp-batches",
    "letters-lstm-small",
    "characters-transformer-small",
)
# A short run takes larger steps than the preset, from fewer pairs.
NUM_PAIRS, LEARNING_RATE = 8, 1e-2
NUM_EVALUATION_RUNS = 8
_TIME, _LOCAL, _MEAN = FEATURES[:5], FEATURES[5:10], FEATURES[10:]
_SHAPES, _ROLES = ("log_fan_in", "log_fan_out"), ("is_input", "is_output")
CANDIDATES = ("loss_trend", *_SHAPES, *_ROLES)
"""Features that are not part of `LearnedMuon`."""


@dataclass(frozen=True)
class Variant:
    """`LearnedMuon` with parts of theta fixed, or with candidate features."""

    fixed_features: tuple[str, ...] = ()
    """Inputs whose weights keep their initial values."""
    added_features: tuple[str, ...] = ()
    """Candidate inputs whose weights are learned."""
    fixed_outputs: tuple[str, ...] = ()
    """Outputs whose weights keep their initial values."""
    has_shared_bias: bool = False
    """Whether vectors, tables and matrices share one bias."""
    is_orthogonalized: bool = True
    """Whether matrices take an orthogonalized direction; otherwise Adafactor's."""
    has_tables: bool = True
    """Whether embeddings are tables; otherwise matrices."""

    def masks(self) -> dict[str, Any]:
        """Arrays that `effective` applies to theta."""
        start = Candidate().init_theta(jax.random.key(0))
        features = (*FEATURES, *CANDIDATES)
        fixed = {*self.fixed_features, *CANDIDATES} - {*self.added_features}
        linear = np.zeros((len(features), len(OUTPUTS)), bool)
        linear[[features.index(name) for name in fixed]] = True
        bias = np.zeros(start["bias"].shape, bool)
        for name in self.fixed_outputs:
            linear[:, OUTPUTS.index(name)] = bias[:, OUTPUTS.index(name)] = True
        values = jax.tree.map(np.array, start)
        if not self.is_orthogonalized:
            blend = OUTPUTS.index("blend_logit")
            linear[:, blend] = bias[:, blend] = True
            values["linear"][:, blend], values["bias"][:, blend] = 0.0, 20.0
        return {
            "is_fixed": {"linear": linear, "bias": bias},
            "values": values,
            "has_shared_bias": np.asarray(self.has_shared_bias),
        }


@dataclass(frozen=True)
class Candidate(LearnedMuon):
    """`LearnedMuon` with `CANDIDATES` as further features, of initial weight zero."""

    has_tables: bool = True
    """Whether embeddings are tables; otherwise matrices."""
    reads_loss: ClassVar[bool] = True

    @override
    def init_theta(self, key: PRNGKeyArray) -> Theta:
        theta = super().init_theta(key)
        added = jnp.zeros((len(CANDIDATES), len(OUTPUTS)), jnp.float32)
        return {**theta, "linear": jnp.concatenate([theta["linear"], added])}

    @override
    def init_shared(self, num_tensors: int) -> PyTree:
        return super().init_shared(num_tensors), jnp.zeros(2, jnp.float32)

    @override
    def update_tensors(
        self, theta: Any, tensors: Any, shared: PyTree, info: StepInfo
    ) -> Any:
        scales, means = shared
        assert info.loss is not None
        decays = np.asarray([0.9, 0.99], np.float32)
        means = means * decays + (1 - decays) * info.loss
        fast, slow = means / (1 - decays ** (info.count + 1))
        trend = jnp.clip((fast - slow) / (jnp.abs(slow) + 1e-8), -3.0, 3.0)
        if not self.has_tables:
            tensors = [tensor._replace(name="") for tensor in tensors]
        info = info._replace(loss=trend)
        results, scales = super().update_tensors(theta, tensors, scales, info)
        return results, (scales, means)

    @override
    def features(self, tensors: Any, local: Any, info: StepInfo) -> Any:
        assert info.loss is not None
        trend = jnp.broadcast_to(info.loss, (len(tensors), 1))
        fans = [(math.prod(t.grad.shape[:-1]), t.grad.shape[-1]) for t in tensors]
        shapes = np.clip(np.log10(fans) - 1.5, -1.5, 1.5)
        # As in muP: the model width is the most frequent size of an axis.
        sizes = [n for t in tensors if t.grad.ndim > 1 for n in t.grad.shape]
        width = max(set(sizes), key=sizes.count) if sizes else 0
        roles = [(i != width == o, i == width != o) for i, o in fans]
        static = np.concatenate([shapes, roles], axis=1).astype(np.float32)
        base = super().features(tensors, local, info)
        return jnp.concatenate([base, trend, static], axis=1)


def effective(theta: Theta, masks: dict[str, Any]) -> Theta:
    """Theta with fixed entries replaced and, if asked for, one bias for all kinds."""
    theta = jax.tree.map(jnp.where, masks["is_fixed"], masks["values"], theta)
    mean = jnp.broadcast_to(theta["bias"].mean(axis=0), theta["bias"].shape)
    bias = jnp.where(masks["has_shared_bias"], mean, theta["bias"])
    return {**theta, "bias": bias}


@dataclass(frozen=True)
class Masked(SystemWrapper):
    """A system that uses the effective theta.

    Masks are part of the data, so that all variants share one compiled program.
    """

    @override
    def init_state(
        self, theta: Theta, data: Data, horizon: Horizon, key: PRNGKeyArray
    ) -> State:
        data, masks = data
        return self.system.init_state(effective(theta, masks), data, horizon, key)

    @override
    def sample_input(self, data: Data, state: State, key: PRNGKeyArray) -> Input:
        return self.system.sample_input(data[0], state, key), data[1]

    @override
    def step(self, theta: Theta, state: State, x: Input) -> tuple[State, Loss]:
        x, masks = x
        return self.system.step(effective(theta, masks), state, x)


VARIANTS: dict[str, Variant] = {
    "full": Variant(),
    "no-time": Variant(fixed_features=_TIME),
    "no-statistics": Variant(fixed_features=_LOCAL + _MEAN),
    "no-mean-statistics": Variant(fixed_features=_MEAN),
    "fixed-momentum": Variant(fixed_outputs=("gradient_logit", "slow_logit")),
    "fixed-blend": Variant(fixed_outputs=("blend_logit",)),
    "shared-bias": Variant(has_shared_bias=True),
    "no-orthogonalization": Variant(is_orthogonalized=False),
    "untrained": Variant(fixed_features=FEATURES, fixed_outputs=OUTPUTS),
    "loss-trend": Variant(added_features=("loss_trend",)),
    "shapes": Variant(added_features=_SHAPES),
    "roles": Variant(added_features=_ROLES),
    "no-tables": Variant(has_tables=False),
}
"""`shapes` contains the scaling of muP, as step sizes may depend on the fan-in; `roles`
separates the schedules of input, hidden and output matrices."""


def main() -> None:
    """Run the variants and seeds without a result yet; print all results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--variants", nargs="+", choices=VARIANTS, default=VARIANTS)
    parser.add_argument("--num-seeds", type=int, default=3)
    parser.add_argument("--num-updates", type=int, default=300)
    parser.add_argument("--out", type=Path, default=Path("runs/ablation.jsonl"))
    options = parser.parse_args()
    tune_cpu_compiler()
    options.out.parent.mkdir(parents=True, exist_ok=True)
    lines = options.out.read_text().splitlines() if options.out.exists() else []
    rows = [json.loads(line) for line in lines]
    done = {(row["variant"], row["seed"], row["num_updates"]) for row in rows}
    for name in options.variants:
        for seed in range(options.num_seeds):
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
            mean = np.mean(list(losses.values()))
            print(f"{name}, seed {seed}: {mean:.3f}", flush=True)
    _print_table([r for r in rows if r["num_updates"] == options.num_updates])


def _run(variant: Variant, num_updates: int, seed: int) -> dict[str, float]:
    """Meta-train one variant; return its validation losses."""
    general = CONFIGS["general"]
    optimizer = Candidate(has_tables=variant.has_tables)

    def with_optimizer(systems: Any) -> tuple[InnerTraining, ...]:
        return tuple(dataclasses.replace(s, optimizer=optimizer) for s in systems)

    systems = [
        system
        for name, system in zip(general.names, general.systems, strict=True)
        if name in TASKS
    ]
    config = dataclasses.replace(
        general,
        systems=with_optimizer(systems),
        system_weights=(),
        estimator=dataclasses.replace(general.estimator, num_pairs=NUM_PAIRS),
        outer_optimizer=dataclasses.replace(
            general.outer_optimizer, learning_rate=LEARNING_RATE
        ),
        num_outer_steps=num_updates,
    )
    trainer = config.make_trainer()
    masked = tuple(map(Masked, trainer.systems))
    trainer = dataclasses.replace(trainer, systems=masked, keep_best=False)
    masks = jax.tree.map(jnp.asarray, variant.masks())
    data = tuple((d, masks) for d in trainer.load())
    state = trainer.init(data, seed)
    if variant != VARIANTS["untrained"]:
        state, _ = trainer.run(data, state, num_updates)
    wrap = OBJECTIVES[config.objective]
    validation = tuple(map(wrap, with_optimizer(config.validation_systems)))
    losses = mean_losses(
        validation,
        tuple(system.load() for system in validation),
        effective(state.result, masks),
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
