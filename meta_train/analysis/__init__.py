"""Diagnostics, cost and resource estimates, theory and figures."""
