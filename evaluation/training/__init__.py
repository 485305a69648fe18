"""Batched inner training of optimizers and baselines, with a cache."""
