"""Files of a run directory: configuration, manifests of checkpoints, metrics."""

import dataclasses
import json
from pathlib import Path

import jax.numpy as jnp
from typing_extensions import override

from benchmarks.fuzz import mutations
from benchmarks.fuzz.base import JsonFile, Kind
from benchmarks.fuzz.mutations import Rng
from lopt.errors import UserError
from meta_train.config.config import MetaTrainConfig
from meta_train.config.config_file import read_config, recorded_kernels, write_config
from meta_train.config.preset_configs import CONFIGS
from meta_train.runtime.checkpoint import Checkpoints
from meta_train.runtime.export import exportable
from meta_train.runtime.metrics import MetricsLog
from meta_train.runtime.metrics_file import read_metrics


class Configs(JsonFile):
    """`config.json` of a run directory."""

    def __init__(self, folder: Path):
        self._config = dataclasses.replace(CONFIGS["demo"], run_dir=folder)
        write_config(self._config)
        (folder / "metrics.jsonl").write_text('{"step": 0}\n')  # The run has begun.
        super().__init__(folder, "config.json")

    @override
    def read(self) -> str:
        recorded_kernels(self.folder)
        try:
            write_config(self._config, lambda text: None)
            return "rewritten"
        except OSError:
            assert self.path.is_dir()
        except UserError as error:  # lists differences in lines of their own
            length = len(str(error))
            assert length < 15_000, f"a message of {length} characters"
        config = read_config(self.folder)
        assert isinstance(config, MetaTrainConfig)
        exportable(config)
        config.make_trainer()
        return "another run"


class Manifests(Kind):
    """Directory of checkpoints and their manifests."""

    def __init__(self, folder: Path):
        super().__init__(folder)
        config = dataclasses.replace(CONFIGS["quadratic-schedule"], run_dir=folder)
        trainer = config.make_trainer()
        self._state = trainer.init(trainer.load(), 0)
        self._directory = folder / "checkpoints"
        checkpoints = Checkpoints(self._directory, lambda text: None)
        for step in (3, 7):
            checkpoints.save_last(self._state.replace(step=jnp.int32(step)))
        checkpoints.close()
        self._files = {
            path.relative_to(self._directory): path.read_bytes()
            for path in self._directory.rglob("*")
            if path.is_file()
        }

    @override
    def mutate(self, rng: Rng) -> str:
        mutations.remove(self._directory)
        for name, data in self._files.items():
            (self._directory / name).parent.mkdir(parents=True, exist_ok=True)
            (self._directory / name).write_bytes(data)
        newest = self._directory / "7"
        manifest = newest / "sha256.json"
        kind = str(rng.choice(["value", "bytes", "raw", "manifest", "folder", "part"]))
        if kind == "value":
            value = mutations.mutate_json(json.loads(manifest.read_bytes()), rng)
            manifest.write_bytes(mutations.dumps(value))
        elif kind == "bytes":
            manifest.write_bytes(mutations.mutate_bytes(manifest.read_bytes(), rng))
        elif kind == "raw":
            manifest.write_bytes(mutations.raw_json(rng))
        elif kind == "manifest":
            kind += " " + mutations.replace_file(manifest, rng)
        elif kind == "folder":
            names = ["7", "0100", "²", "٣", "8", "9.damaged", "-1", "99999999999", " 5"]
            path = self._directory / str(rng.choice(names))
            kind += " " + mutations.replace_file(path, rng)
        else:
            parts = [path for path in sorted(newest.rglob("*")) if path != manifest]
            path = parts[rng.integers(len(parts))]
            # The time of hashing is proportional to the size.
            kind += " " + mutations.replace_file(path, rng, sparse=2**28)
        return kind

    @override
    def read(self) -> str:
        first = Checkpoints(self._directory, lambda text: None, read_only=True)
        try:
            if first.latest == 7:  # the one that was damaged
                state = first.restore(self._state)
                assert int(state.step) == 7
        finally:
            first.close()
        again = Checkpoints(self._directory, lambda text: None)
        again.close()
        assert again.latest == first.latest
        return f"checkpoint {first.latest}"


class Metrics(Kind):
    """`metrics.jsonl` of a run, with damaged lines among valid ones."""

    def __init__(self, folder: Path):
        super().__init__(folder)
        self._config = dataclasses.replace(
            CONFIGS["quadratic-schedule"], run_dir=folder, wandb="off"
        )
        self.path = folder / "metrics.jsonl"
        values = {"loss": 0.5, "grad_norm": None, "meta_loss": 1e-3}
        self._lines = [{"step": step, **values} for step in range(8)]

    @override
    def mutate(self, rng: Rng) -> str:
        mutations.remove(self.path)
        self._whole: list[int] = []  # steps of the lines that are not damaged
        kind = str(rng.choice(["value", "raw", "line", "bytes", "file"]))
        if kind == "file":
            return mutations.replace_file(self.path, rng)
        rows = [mutations.dumps(line) for line in self._lines]
        place = int(rng.integers(len(rows)))
        if kind == "value":
            rows[place] = mutations.dumps(
                mutations.mutate_json(self._lines[place], rng)
            )
        elif kind == "raw":
            rows[place] = mutations.raw_json(rng)
        elif kind == "line":
            rows[place] = mutations.mutate_bytes(rows[place], rng).replace(b"\n", b"")
        data = b"\n".join(rows) + b"\n"
        if kind == "bytes":
            data = mutations.mutate_bytes(data, rng)
        self.path.write_bytes(data)
        if kind != "bytes":
            self._whole = [i for i in range(8) if i != place]
        return kind

    @override
    def read(self) -> str:
        # Logs do not follow links.
        is_text = self.path.is_file() and not self.path.is_symlink()
        is_text = is_text and self.path.stat().st_size < 2**30
        before = read_metrics(self.path)
        if is_text and self.path.stat().st_size:
            steps = [line["step"] for line in before]
            missing = [i for i in self._whole if i not in steps]
            assert not missing, f"the undamaged lines {missing} are lost"
        log = MetricsLog(self._config, {}, 4, lambda text: None)
        log.write(5, {"loss": 1.0})
        log.close()
        if not is_text:
            return "replaced"
        after = read_metrics(self.path)
        assert after[-1] == {"step": 5, "loss": 1.0}
        return f"{len(before)} lines"
