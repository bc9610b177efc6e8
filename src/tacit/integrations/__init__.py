"""How do I train privately with the tools I already use? Hugging Face's Trainer, Lightning and experiment trackers.

Each has a module of its own, which imports the tool: ``tacit.integrations.transformers``,
``tacit.integrations.lightning`` and ``tacit.integrations.trackers``.
"""
