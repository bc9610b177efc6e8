"""How does a clip norm follow the gradients? ``make_private(clipping="adaptive")``, under Opacus' other name for it."""

from __future__ import annotations

from typing import Any

from tacit.opacus.privacy_engine import PrivacyEngine


class PrivacyEngineAdaptiveClipping(PrivacyEngine):
    """:class:`PrivacyEngine` whose clip norm follows a quantile of the norms, by a noisy count that is in the price."""

    def make_private(self, **kwargs: Any) -> Any:
        """:meth:`PrivacyEngine.make_private` with ``clipping="adaptive"``; ``min_clipbound`` is 1 unless given."""
        return super().make_private(**_adaptive(kwargs))

    def make_private_with_epsilon(self, **kwargs: Any) -> Any:
        """:meth:`PrivacyEngine.make_private_with_epsilon` with ``clipping="adaptive"``."""
        return super().make_private_with_epsilon(**_adaptive(kwargs))


def _adaptive(options: dict[str, Any]) -> dict[str, Any]:
    if options.get("clipping", "flat") not in ("flat", "adaptive"):
        raise ValueError(f"this engine clips adaptively, not {options['clipping']!r}")
    return {"min_clipbound": 1.0, **options, "clipping": "adaptive"}


__all__ = ["PrivacyEngineAdaptiveClipping"]
