"""How do I train privately with the tools I use already? Hugging Face's Trainer, Lightning, and experiment trackers.

Each is a file of its own that imports its package when it is imported: ``tacit.integrations.transformers``,
``tacit.integrations.lightning``, ``tacit.integrations.trackers``.
"""
