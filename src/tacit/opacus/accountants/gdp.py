"""Where Opacus keeps ``GaussianAccountant``."""

from tacit.opacus.accountants.accountant import GaussianAccountant

__all__ = ["GaussianAccountant"]
