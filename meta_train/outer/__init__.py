"""The outer loop: trainer, outer optimizer and their checks."""
