"""Can this module be trained privately, and what replaces the parts that cannot? Opacus' names."""

from tacit.opacus.validators.module_validator import ModuleValidator
from tacit.opacus.validators.utils import register_module_fixer, register_module_validator

__all__ = ["ModuleValidator", "register_module_fixer", "register_module_validator"]
