"""Learned optimizer architectures, one per file."""
