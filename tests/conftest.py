"""What holds for every test: one thread per process, because the workers of pytest share the cores; and a key that is
not the user's own, because runs are signed."""

from __future__ import annotations

import os

import pytest

# Before torch or numpy is imported anywhere: several threads only wait for one another in networks this small.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("MKL_NUM_THREADS", "1")


@pytest.fixture(scope="session", autouse=True)
def _key_of_the_tests(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Also for the processes that tests start."""
    os.environ["XDG_CONFIG_HOME"] = str(tmp_path_factory.mktemp("config"))
