"""What holds for every test: one thread per process, because the workers of pytest share the cores."""

from __future__ import annotations

import os

# Before torch or numpy is imported anywhere: several threads only wait for one another in networks this small.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("MKL_NUM_THREADS", "1")
