"""Short programs that show what tacit does; each runs with ``python -m examples.NAME``."""
