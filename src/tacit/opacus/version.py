"""Which version of Opacus' interface is followed?"""

__version__ = "1.6.0"
