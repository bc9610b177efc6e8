"""How does a private step become one program? Trace, rewrites, repeated layers, CUDA graph, comparison, cache."""
