"""Host side of a run: checkpoints, metrics, progress and the run directory."""
