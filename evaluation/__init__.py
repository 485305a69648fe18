"""WHETHER it helps: tuned baselines, held-out tasks, intervals, pictures."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from evaluation.compare import evaluate

__all__ = ["evaluate"]


def __getattr__(name: str) -> Any:
    # `lopt evaluate --help` imports this too, and should not wait for jax.
    if name != "evaluate":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from evaluation.compare import evaluate

    return evaluate
