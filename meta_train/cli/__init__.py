"""Commands of meta-training, one per file."""
