"""What did training cost? Opacus' accountants by name; behind every one stands tacit's certified accounting."""

from tacit.opacus.accountants import analysis, utils
from tacit.opacus.accountants.accountant import (
    GaussianAccountant,
    IAccountant,
    PRVAccountant,
    RDPAccountant,
    create_accountant,
    register_accountant,
)

__all__ = [
    "GaussianAccountant",
    "IAccountant",
    "PRVAccountant",
    "RDPAccountant",
    "analysis",
    "create_accountant",
    "register_accountant",
    "utils",
]
