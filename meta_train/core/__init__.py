"""Inner training, truncation, meta-objectives and the outer loop."""
