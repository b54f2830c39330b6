"""The earlier address of `tailwise.features`: modules with one's own features, which saved policies name, import it."""

from tailwise.features import (
    CLOSE,
    HIGH,
    LOW,
    OPEN,
    TIME,
    VOLUME,
    Feature,
    batch_feature,
    feature,
)

__all__ = ["CLOSE", "HIGH", "LOW", "OPEN", "TIME", "VOLUME", "Feature", "batch_feature", "feature"]
