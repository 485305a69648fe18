"""Elementwise kernels of learned optimizers and their lowerings."""
