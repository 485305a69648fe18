"""Baseline optimizers and the grid search over their learning rates."""
