"""Command line of `lopt data`."""
