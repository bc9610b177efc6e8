"""Measured ratios against the peers; ``python -m benchmarks`` lists and runs them."""
