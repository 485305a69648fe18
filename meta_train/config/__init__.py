"""Configuration of a run, and the presets."""
