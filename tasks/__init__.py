"""Inner problems, datasets and unrolled systems."""
