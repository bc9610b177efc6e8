"""Which operations use a parameter, where are the examples, and what does each contribute to the clipped sum?"""
