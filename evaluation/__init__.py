"""Evaluation of optimizers on held-out tasks against tuned baselines."""

from typing import TYPE_CHECKING

from lopt import lazy

if TYPE_CHECKING:
    from evaluation.baselines import BASELINES as BASELINES
    from evaluation.comparison import evaluate as evaluate
    from evaluation.report.results import read_results as read_results
    from evaluation.report.write import write_report as write_report
    from evaluation.suites import SUITES as SUITES, Case as Case
    from evaluation.training.cache import Cache as Cache

_EXPORTS = {
    "evaluation.baselines": ["BASELINES"],
    "evaluation.comparison": ["evaluate"],
    "evaluation.report.results": ["read_results"],
    "evaluation.report.write": ["write_report"],
    "evaluation.suites": ["Case", "SUITES"],
    "evaluation.training.cache": ["Cache"],
}
__getattr__, __dir__, __all__ = lazy.attach(__name__, _EXPORTS)
