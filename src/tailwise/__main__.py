"""`python -m tailwise` is the command line."""

from __future__ import annotations

import sys

from tailwise.cli.main import main

sys.exit(main())
