"""Training, sweeps and their results: what the scripts share."""
