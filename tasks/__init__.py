"""WHAT is trained: inner problems and unrolled systems."""
