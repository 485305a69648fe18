"""HOW theta is learned: truncations, gradient estimators and the outer loop."""
