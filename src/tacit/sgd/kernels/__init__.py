"""How are norms and weighted sums of per-example gradients computed fast on a GPU? Triton and vendor products."""
