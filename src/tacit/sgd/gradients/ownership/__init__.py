"""Whose is each element of each value that a pass computes?

:class:`~tacit.sgd.gradients.ownership.tracker.OwnershipMode` watches a pass below autograd, forward and backward, and
keeps beside every tensor who owns its elements: nobody, one example, or several. What it says holds by construction,
for whatever values the batch has: no batch has to be compared with another.
"""
