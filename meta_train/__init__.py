"""Meta-training of `theta`: truncation, gradient estimators and the outer loop."""
