"""Where Opacus keeps ``RDPAccountant``."""

from tacit.opacus.accountants.accountant import RDPAccountant

__all__ = ["RDPAccountant"]
