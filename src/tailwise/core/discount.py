"""How far a discount looks ahead."""

from __future__ import annotations

import math

from tailwise.core.errors import ConfigError


def tail_horizon(gamma: float) -> int:
    """Steps after which a discounted return is over: 3 / (1 - gamma), where the weight has fallen to 5%."""
    if not 0 <= gamma < 1:
        raise ConfigError(f"gamma is {gamma}; a discount per bar lies in [0, 1).")
    return math.ceil(round(3 / (1 - gamma), 6))  # 3 / (1 - 0.9) is 30, not 30.000000000000004
