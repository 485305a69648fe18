"""Evaluation of optimizers on held-out tasks against tuned baselines."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from evaluation.comparison import evaluate

__all__ = ["evaluate"]


def __getattr__(name: str) -> Any:
    # Import lazily: `lopt evaluate --help` imports this package and must not wait
    # for JAX.
    if name != "evaluate":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from evaluation.comparison import evaluate

    return evaluate
