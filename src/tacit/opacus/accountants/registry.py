"""Where Opacus keeps ``create_accountant`` and ``register_accountant``."""

from tacit.opacus.accountants.accountant import create_accountant, register_accountant

__all__ = ["create_accountant", "register_accountant"]
