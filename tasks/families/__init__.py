"""Families of tasks: augmentations, random labels, classes and datasets."""
