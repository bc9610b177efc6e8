"""How does one line become a model, a card and a page to show? The runs behind the commands and ``tacit.run``."""
