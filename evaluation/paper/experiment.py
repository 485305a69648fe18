"""Base class of the experiments of the PES paper (Vicol et al., 2021).

An experiment is a frozen dataclass. Its fields are its settings, with those of the
paper as defaults; smaller scales override some of them.
"""

import dataclasses
import functools
import importlib.util
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple, TypeAlias

from matplotlib.figure import Figure

from evaluation.paper.records import Records
from lopt.errors import UserError
from meta_train.config.config import MetaTrainConfig
from tasks.zoo_queries import check_prepared

Scale: TypeAlias = Literal["smoke", "small", "paper"]
SCALES: dict[str, Scale] = {"smoke": "smoke", "small": "small", "paper": "paper"}


class Verdict(NamedTuple):
    """Outcome of the check of a claim.

    Attributes:
        holds: Whether the claim holds; `None` if the evidence is inconclusive.
        evidence: The numbers that decide it, in one or a few sentences.
    """

    holds: bool | None
    evidence: str

    @property
    def word(self) -> str:
        """The outcome as a word."""
        return {True: "holds", False: "does not hold", None: "inconclusive"}[self.holds]


class Job(NamedTuple):
    """Part of an experiment whose result is recorded when it has ended.

    Attributes:
        name: Relative path of its directory, such as ``PES/seed-0``.
        work: Configuration of a meta-training run, or function that returns JSON
            values.
    """

    name: str
    work: MetaTrainConfig | Callable[[], Any]


@dataclass(frozen=True)
class Experiment(ABC):
    """Experiment of the paper: jobs, a figure, and a check of the claim."""

    name: ClassVar[str]
    """Name on the command line."""
    figure: ClassVar[str]
    """Figure or table of the paper."""
    claim: ClassVar[str]
    """Statement that `check` tests."""
    shows: ClassVar[str]
    """What the paper shows."""
    differs: ClassVar[str]
    """What differs from the paper, at any scale or at the scale `small`."""
    scales: ClassVar[Mapping[Scale, Mapping[str, Any]]]
    """Settings that differ from the defaults, by scale."""
    minutes: ClassVar[Mapping[Scale, float]]
    """Approximate time on one CPU core, by scale."""
    modules: ClassVar[Mapping[str, str]] = {}
    """Optional modules that the experiment imports, with their extras."""

    num_seeds: int = 3
    """Number of seeds of each method."""

    @classmethod
    def at(cls, scale: Scale) -> "Experiment":
        """Create the experiment with the settings of a scale."""
        return cls(**cls.scales[scale])

    @abstractmethod
    def jobs(self) -> list[Job]:
        """List the jobs, in the order in which they run."""

    @abstractmethod
    def check(self, results: Records) -> Verdict:
        """Check the claim."""

    @abstractmethod
    def draw(self, results: Records) -> Figure:
        """Draw the figure."""

    def check_prepared(self) -> None:
        """Validate that all modules and datasets are available.

        Raises:
            UserError: If a module must be installed or a dataset prepared first.
        """
        for module, extra in self.modules.items():
            if importlib.util.find_spec(module) is None:
                raise UserError(
                    f"{self.name} must have the package {module}; it is not installed. "
                    f"Try pip install 'lopt[{extra}]'."
                )
        for job in self.jobs():
            if isinstance(job.work, MetaTrainConfig):
                for system in job.work.systems:
                    check_prepared(system.zoo_problem)

    @property
    def methods(self) -> list[str]:
        """Names of the methods, in the order of their jobs."""
        names = [job.name.rpartition("/seed-")[0] for job in self.jobs()]
        return list(dict.fromkeys(name for name in names if name))

    def repeats(self, method: str, work: Callable[[int], Any]) -> list[Job]:
        """List one job for each seed, the argument of `work`."""
        return [
            Job(f"{method}/seed-{seed}", functools.partial(work, seed))
            for seed in range(self.num_seeds)
        ]

    def runs(self, methods: Mapping[str, MetaTrainConfig]) -> list[Job]:
        """List one meta-training run for each method, by name, and seed."""
        return [
            Job(f"{method}/seed-{seed}", dataclasses.replace(config, seed=seed))
            for method, config in methods.items()
            for seed in range(self.num_seeds)
        ]


def conclude(parts: Sequence[tuple[str, Any]]) -> Verdict:
    """Combine partial claims: false if any is, else inconclusive if any is.

    Args:
        parts: Evidence of each part, and its outcome: a boolean, which may be NumPy's,
            or `None`.
    """
    outcomes = [None if holds is None else bool(holds) for _, holds in parts]
    holds = False if False in outcomes else None if None in outcomes else True
    words = {True: "yes", False: "no", None: "unclear"}
    texts = [text for text, _ in parts]
    text = "; ".join(
        f"{text} ({words[outcome]})"
        for text, outcome in zip(texts, outcomes, strict=True)
    )
    return Verdict(holds, f"{text}.")
