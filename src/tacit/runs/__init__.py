"""How do data become a model, a card and a page to show? The runs behind the commands and ``tacit.run``.

:mod:`~tacit.runs.folder` carries out any run and :mod:`~tacit.runs.journal` survives a kill; a run is one of
:mod:`~tacit.runs.train`, :mod:`~tacit.runs.search`, :mod:`~tacit.runs.pate` and :mod:`~tacit.runs.prompt`. Their steps:
:mod:`~tacit.runs.read`, :mod:`~tacit.runs.evaluate`, :mod:`~tacit.runs.publish`.
"""
