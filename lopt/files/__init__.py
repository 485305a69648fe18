"""Files of learned optimizers, and conversion of dataclasses to JSON."""
