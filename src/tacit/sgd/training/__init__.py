"""How does a run go from a plan to a model? Sampling, data, steps, checkpoints, and the charge for all of it."""
