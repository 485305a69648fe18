"""Supervised tasks: networks trained on a dataset or a text."""
