"""Analytic tasks without data."""
