"""WHETHER it helps: tuned baselines, held-out tasks, intervals, pictures."""
