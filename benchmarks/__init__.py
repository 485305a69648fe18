"""Benchmarks, ablations and stress tests, run by hand.

Compare ratios within one run: absolute times depend on the machine.
"""
