"""Black-box tuners of outer parameters, as baselines of meta-training."""
