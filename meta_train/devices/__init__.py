"""Devices: sharding, CPU devices and multi-process runs."""
