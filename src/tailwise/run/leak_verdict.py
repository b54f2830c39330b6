"""What the manifest of a run says about look-ahead in its own features."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from tailwise.core.config import parse
from tailwise.features.spec import FeatureSpec
from tailwise.market.leaks.features import LeakVerdict, unknown_verdict
from tailwise.run.run_folder import MANIFEST, read_manifest

LEAK_CHECK = "leak_check"  # its key in the manifest


def read_leak_verdict(run_dir: Path, features: FeatureSpec | None) -> LeakVerdict | None:
    """The verdict of a run whose policy sees `features`; None when there is nothing to say: no own feature.

    A run that is older than the check has none in its manifest: then it is unknown.
    """
    own = None if features is None else features.own()
    if own is None:
        return None
    stored = read_manifest(run_dir).get(LEAK_CHECK)
    if stored is None:
        return unknown_verdict(own.names)
    return parse(LeakVerdict, stored, source=f"{run_dir / MANIFEST} {LEAK_CHECK}")


def worst_verdict(verdicts: Iterable[LeakVerdict | None]) -> LeakVerdict | None:
    """The verdict of policies that decide together: that of the one that is known least about."""
    known = [verdict for verdict in verdicts if verdict is not None]
    return max(known, key=lambda verdict: verdict.doubtful, default=None)
