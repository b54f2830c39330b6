"""The built-in sets are real, complete and described."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from tailwise.bars import builtin
from tailwise.core.errors import DataError


@pytest.mark.parametrize(
    ("name", "symbol", "first_close"), [("sp500", "SP500", 1228.099976), ("nasdaq", "NASDAQ", 2208.050049)]
)
def test_twenty_years_of_daily_bars(name: str, symbol: str, first_close: float) -> None:
    bars = builtin.load(name)
    assert (bars.symbol, bars.label, bars.source) == (symbol, "real", f"arch.data.{name}")
    assert len(bars) == 5031
    assert bars.time[0] == np.datetime64("1999-01-04") and bars.time[-1] == np.datetime64("2018-12-31")
    assert bars.close[0] == first_close
    assert bars.frequency.periods_per_year == 252 and bars.frequency.calendar == "exchange"
    assert "adjusted closes equal the closes: nothing to adjust" in bars.notes


def test_windows_of_the_demo() -> None:
    bars = builtin.sp500()
    windows = [bars.between(a, b) for a, b in (("1999", "2010"), ("2010", "2013"), ("2013", "2019"))]
    assert sum(len(window) for window in windows) == len(bars)


def test_names() -> None:
    assert builtin.names() == ("sp500", "nasdaq")
    with pytest.raises(DataError, match="no built-in data set 'dax'; there are sp500, nasdaq"):
        builtin.load("dax")


def test_importing_it_does_not_import_arch_or_torch() -> None:
    """Rejects an import at the top, which would cost every command a second."""
    code = (
        "import sys; from tailwise.bars import builtin, synthetic; "
        "sys.exit(', '.join({'arch', 'torch', 'pyarrow'} & set(sys.modules)) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stderr.strip() == "" and done.returncode == 0
