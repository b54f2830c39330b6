"""Features: numbers that say something about the past of a price, computed alike bar by bar and for a whole history.

`feature` and `batch_feature` declare one's own; docs/features.md tells how. `features.config.FeaturesConfig` says which
are wanted, `features.spec.FeatureSpec` is fitted on the train rows and makes tables and streams.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tailwise.features.contract import CLOSE, HIGH, LOW, OPEN, TIME, VOLUME, Feature, batch_feature, feature

__all__ = ["CLOSE", "HIGH", "LOW", "OPEN", "TIME", "VOLUME", "Feature", "batch_feature", "feature"]


def __getattr__(name: str) -> Any:
    """The names above, imported when they are used: the configuration alone needs no numba."""
    if name in __all__:
        from tailwise.features import contract

        return getattr(contract, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
