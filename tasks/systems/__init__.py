"""Unrolled systems that own their outer parameters."""
