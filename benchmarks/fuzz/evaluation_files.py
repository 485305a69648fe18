"""Files of an evaluation: results and cache entries."""

import io
import json
from pathlib import Path

import jax.numpy as jnp
import numpy as np
from typing_extensions import override

from benchmarks.fuzz import mutations
from benchmarks.fuzz.base import JsonFile, Kind, check_printable
from benchmarks.fuzz.mutations import Rng
from evaluation import evaluate
from evaluation.cli.report import report
from evaluation.report import figures
from evaluation.suites import Case
from evaluation.training.batched import Curves
from evaluation.training.cache import Cache
from lopt.optimizers.scheduled_sgd import ScheduledSGD
from tasks.synthetic.quadratic import RandomQuadratic


class Results(JsonFile):
    """`results.json` of an evaluation."""

    def __init__(self, folder: Path):
        case = Case("quadratic", RandomQuadratic(dim=4), 20, "test")
        optimizer = (ScheduledSGD(), jnp.log(jnp.full(2, 0.05)))
        few = {"num_seeds": 3, "num_tuning_seeds": 1, "baselines": ("sgd",)}
        results = evaluate({"mine": optimizer}, [case], cache=Cache(), **few)
        (folder / "results.json").write_text(json.dumps(results))
        super().__init__(folder, "results.json")
        self._draw = figures.draw

    @override
    def mutate(self, rng: Rng) -> str:
        for name in ("report.html", "results.csv", "figures"):
            mutations.remove(self.folder / name)
        # Drawing takes a second: it is left out of 49 in 50 reports.
        figures.draw = self._draw if rng.random() < 0.02 else lambda *_: []
        return super().mutate(rng)

    @override
    def read(self) -> str:
        try:
            check_printable(lambda: report([str(self.folder)]))
        finally:
            figures.draw = self._draw
        page = (self.folder / "report.html").read_text()
        assert "<script" not in page, "markup in the page"
        return "accepted"


class CacheEntries(Kind):
    """Entries of the cache of evaluations."""

    def __init__(self, folder: Path):
        super().__init__(folder)
        self._cache = Cache(folder)
        arrays = (
            np.linspace(0, 1, 60).reshape(3, 20),
            np.ones((3, 2)),
            np.ones((3, 2)),
        )
        self._curves = Curves(*arrays)
        self._cache.put("x", self._curves)
        (self.path,) = folder.iterdir()
        self._data = self.path.read_bytes()

    @override
    def mutate(self, rng: Rng) -> str:
        mutations.remove(self.path)
        if rng.random() < 0.1:
            return mutations.replace_file(self.path, rng)
        if rng.random() < 0.1:
            content = io.BytesIO()
            shape = (int(rng.choice([0, 3, 10**5])),)
            arrays = {name: np.zeros(shape, "S1") for name in Curves._fields}
            np.savez(content, allow_pickle=False, **arrays)
            self.path.write_bytes(content.getvalue())
            return "arrays"
        self.path.write_bytes(mutations.mutate_bytes(self._data, rng))
        return "bytes"

    @override
    def read(self) -> str:
        found = self._cache.get("x", Curves)
        if found is None:
            self._cache.put("x", self._curves)
            assert self.path.is_dir() or self._cache.get("x", Curves) is not None
            return "miss"
        assert all(map(np.array_equal, found, self._curves)), "wrong arrays"
        return "hit"
