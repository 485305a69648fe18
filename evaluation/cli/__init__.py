"""Commands of evaluation, one per file."""
