"""How do people decide about ε together, around a screen? A local web application: ``tacit studio``.

It asks the accountant, the ledger and the folders of runs, and holds no rule of its own. Every answer is a piece of
HTML that is written here, with every value escaped, in the language of the page; the browser only puts it in its place.
Nothing is loaded from anywhere else.
"""

from tacit.studio.app import make_app, serve
from tacit.studio.state import Studio

__all__ = ["Studio", "make_app", "serve"]
