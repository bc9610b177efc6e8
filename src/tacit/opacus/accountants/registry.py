"""Where Opacus keeps ``create_accountant``."""

from tacit.opacus.accountants.accountant import create_accountant

__all__ = ["create_accountant"]
