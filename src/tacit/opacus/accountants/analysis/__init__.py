"""Where are Opacus' formulas of privacy analysis? ``rdp`` and ``gdp``, answered by :mod:`tacit.accounting`.

Every number is a certified upper bound. ``prv``, the parts that Opacus' numerical composition is made of, is not here:
``tacit.accounting.epsilon`` and ``profile`` give what it is for, with both ends.
"""

from tacit.opacus.accountants.analysis import gdp, rdp

__all__ = ["gdp", "rdp"]
