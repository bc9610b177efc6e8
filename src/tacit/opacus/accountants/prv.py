"""Where Opacus keeps ``PRVAccountant``."""

from tacit.opacus.accountants.accountant import PRVAccountant

__all__ = ["PRVAccountant"]
