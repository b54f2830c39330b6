"""core/ is what every command imports first: it must not pull in torch."""

from __future__ import annotations

import subprocess
import sys

CODE = """
import pkgutil, sys, importlib
import tailwise.core
for module in pkgutil.iter_modules(tailwise.core.__path__):
    importlib.import_module(f"tailwise.core.{module.name}")
print(len(list(pkgutil.iter_modules(tailwise.core.__path__))), sorted({"torch", "pandas", "numba"} & set(sys.modules)))
"""


def test_core_imports_without_torch_pandas_or_numba() -> None:
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, timeout=120, check=True)
    count, heavy = done.stdout.split(maxsplit=1)
    assert int(count) >= 6
    assert heavy.strip() == "[]"
