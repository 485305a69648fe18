"""The kinds of files by name."""

from benchmarks.fuzz.base import Kind
from benchmarks.fuzz.evaluation_files import CacheEntries, Results
from benchmarks.fuzz.optimizer_files import Cards, Exports
from benchmarks.fuzz.run_files import Configs, Manifests, Metrics

KINDS: dict[str, type[Kind]] = {
    "exports": Exports,
    "cards": Cards,
    "config": Configs,
    "results": Results,
    "manifests": Manifests,
    "metrics": Metrics,
    "cache": CacheEntries,
}
