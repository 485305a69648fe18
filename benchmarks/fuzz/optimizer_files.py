"""Optimizer files and their cards."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import safetensors.numpy
from typing_extensions import override

import lopt
from benchmarks.fuzz import mutations
from benchmarks.fuzz.base import Kind, check_printable
from benchmarks.fuzz.mutations import Rng
from evaluation.suites import SUITES, marked, with_training_cases
from lopt.cli.show import show
from lopt.files import format as file_format
from lopt.files.dataclass_json import to_dict
from lopt.optimizers.scheduled_sgd import ScheduledSGD
from lopt.registry import OPTIMIZERS
from meta_train.config.preset_configs import CONFIGS
from tasks.supervised.language import RecurrentLM
from tasks.supervised.mlp import MLP
from tasks.zoo import ZOO

_CARD = {
    "tasks": [to_dict(MLP(width=8)), to_dict(RecurrentLM(width=4))],
    "task_names": ["digits-mlp", "letters"],
    "horizons": [5, 9],
    "estimator": to_dict(CONFIGS["quadratic-schedule"].estimator),
    "num_outer_steps": 100,
    "seed": 1,
}


class Exports(Kind):
    """Optimizer files of every architecture, half of them with a valid checksum."""

    def __init__(self, folder: Path):
        super().__init__(folder)
        self.path = folder / "mutant.safetensors"
        self._files = []
        for name, kind in OPTIMIZERS.items():
            path = folder / f"{name}.safetensors"
            lopt.save(
                path, kind(), jax.jit(kind().init_theta)(jax.random.key(0)), _CARD
            )
            self._files.append((path.read_bytes(), *file_format.read_file(path)))

    @override
    def mutate(self, rng: Rng) -> str:
        mutations.remove(self.path)
        data, header, tensors = self._files[rng.integers(len(self._files))]
        header = json.loads(json.dumps(header))
        self._expected = header["sha256"]
        kind = str(rng.choice(["bytes", "storage", "header", "tensors", "file"]))
        if kind == "file":
            return mutations.replace_file(self.path, rng)
        if kind == "bytes":
            data = mutations.mutate_bytes(data, rng)
        elif kind == "storage":
            size = int.from_bytes(data[:8], "little")
            outer = mutations.mutate_json(json.loads(data[8 : 8 + size]), rng)
            text = mutations.dumps(outer)
            data = len(text).to_bytes(8, "little") + text + data[8 + size :]
        elif kind == "header":
            part = str(
                rng.choice(["hyperparameters", "hyperparameters", "architecture"])
            )
            header[part] = mutations.mutate_json(header[part], rng)
            data, self._expected = _signed(header, tensors)
        else:
            data, self._expected = _signed(header, _mutate_tensors(tensors, rng))
        self.path.write_bytes(data)
        return kind

    @override
    def read(self) -> str:
        card = lopt.read_card(self.path)
        optimizer, theta = lopt.load_theta(self.path)
        lopt.load(self.path, num_steps=7)
        # The checksum covers the header and all tensors.
        assert card["sha256"] == self._expected, "other content than that of the file"
        described = {**card["hyperparameters"], "type": card["architecture"]}
        assert described.items() <= to_dict(optimizer).items() or any(
            isinstance(value, dict) for value in described.values()
        ), f"{optimizer} instead of {described}"
        assert all(bool(jnp.isfinite(x).all()) for x in jax.tree.leaves(theta))
        return "accepted"


def _mutate_tensors(tensors: dict[str, np.ndarray], rng: Rng) -> dict[str, np.ndarray]:
    found = {name: tensor.copy() for name, tensor in tensors.items()}
    name = str(rng.choice(sorted(found)))
    tensor = found.pop(name)
    odd = [np.nan, np.inf, -np.inf, 1e38, 0.0]
    dtypes = ["float16", "float64", "int32", "uint8", "bool", "complex64"]
    match rng.integers(7):
        case 0:
            found[f"{name}x"] = tensor
        case 1:
            tensor.reshape(-1)[rng.integers(tensor.size)] = odd[rng.integers(len(odd))]
            found[name] = tensor
        case 2:
            found[name] = tensor.astype(str(rng.choice(dtypes)))
        case 3:
            found[name] = tensor.reshape(-1)[: rng.integers(tensor.size + 1)].copy()
        case 4:
            found[name] = tensor[None]
        case 5:
            found |= {name: tensor, "more": np.zeros((10**9, 0), np.float32)}
        case _:
            found |= {name: tensor, "more": np.zeros(10**5, np.uint8)}
    return found


def _signed(header: dict[str, Any], tensors: Any) -> tuple[bytes, str]:
    """Serialize a header and tensors with a valid checksum."""
    header.pop("sha256", None)
    header["sha256"] = file_format._checksum(header, tensors)
    data = safetensors.numpy.save(tensors, {"lopt": json.dumps(header)})
    return data, header["sha256"]


class Cards(Kind):
    """Cards of optimizer files with a valid checksum, as seen by all their readers."""

    def __init__(self, folder: Path):
        super().__init__(folder)
        self.path = folder / "optimizer.safetensors"
        optimizer = ScheduledSGD()
        lopt.save(self.path, optimizer, optimizer.init_theta(jax.random.key(0)), _CARD)
        self._header, self._tensors = file_format.read_file(self.path)
        tasks = [entry.problem for entry in ZOO.values() if hasattr(entry, "problem")]
        self._tasks = [
            to_dict(task) for task in tasks if dataclasses.is_dataclass(task)
        ]

    @override
    def mutate(self, rng: Rng) -> str:
        header = json.loads(json.dumps(self._header))
        card = header["card"]
        card["tasks"].append(self._tasks[rng.integers(len(self._tasks))])
        part = str(rng.choice(["card", "tasks", "tasks", "horizons", "versions"]))
        if part == "card":
            header["card"] = mutations.mutate_json(card, rng)
        elif part == "versions":
            header["versions"] = mutations.mutate_json(header["versions"], rng)
        else:
            card[part] = mutations.mutate_json(card[part], rng)
        self.path.write_bytes(_signed(header, self._tensors)[0])
        return part

    @override
    def read(self) -> str:
        card = lopt.read_card(self.path)
        check_printable(lambda: show([str(self.path)]))
        lopt.load(self.path, num_steps=7)
        cases = with_training_cases(SUITES["quick"], [card])
        marked(cases, [card])
        return f"{len(cases) - len(SUITES['quick'])} tasks"
