"""Can this module be trained privately, and what replaces the parts that cannot? Opacus' names."""

from tacit.opacus.validators.module_validator import ModuleValidator

__all__ = ["ModuleValidator"]
