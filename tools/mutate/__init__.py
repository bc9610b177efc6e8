"""Would a test notice? Changes the source in ways that break a guarantee and runs the tests that cover the change.

``python -m tools.mutate`` makes every mutant; ``docs/maintain/mutants.md`` says how, and how to read what comes out.
"""
