"""Batched training whose results are cached."""

from collections.abc import Sequence

from evaluation.training import batched
from evaluation.training.batched import Curves, Runs
from evaluation.training.cache import Cache, name_of
from evaluation.training.work import Advance, no_progress
from tasks.base import Family


def train_cached(
    task: Family,
    num_steps: int,
    groups: Sequence[Runs],
    cache: Cache,
    advance: Advance = no_progress,
) -> list[Curves]:
    """Train the groups that are not in the cache, and cache their curves.

    Args:
        task: Task to train.
        num_steps: Steps of each run.
        groups: Runs of each optimizer.
        cache: Cache of results.
        advance: Callback with the fraction that was completed since the last call.

    Returns:
        Curves of each group, as from `batched.train`.
    """
    names = [name_of(task, num_steps, group) for group in groups]
    found = [cache.get(name, Curves) for name in names]
    missing = [i for i, curves in enumerate(found) if curves is None]
    share = len(missing) / len(groups)
    advance(1.0 - share)
    if missing:
        new = batched.train(
            task,
            num_steps,
            [groups[i] for i in missing],
            lambda fraction: advance(fraction * share),
        )
        for i, curves in zip(missing, new, strict=True):
            found[i] = curves
            cache.put(names[i], curves)
    return [curves for curves in found if curves is not None]
