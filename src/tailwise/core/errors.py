"""The errors that Tailwise raises on purpose.

Every message is a sentence for the person who has to fix the cause: what is wrong, where, which value, and what to
do. The command line prints that sentence without a traceback and exits with code 2.
"""

from __future__ import annotations


class TailwiseError(Exception):
    """Base of all errors that Tailwise raises on purpose; `str(error)` is a sentence for the user."""


# Four of the classes below are ValueErrors as well: pydantic turns only those that leave a validator into a
# validation error that knows the key, and callers who know nothing of Tailwise may catch the built-in type.


class ConfigError(TailwiseError, ValueError):
    """A configuration has an unknown key, a wrong type, a value out of range or an impossible combination."""


class DataError(TailwiseError, ValueError):
    """Input data (bars, observations, info numbers) are malformed or not finite."""


class ShapeError(TailwiseError, ValueError):
    """An array or tensor has another shape or dtype than its contract says."""


class EnvironmentContractError(TailwiseError, ValueError):
    """An environment breaks the Gymnasium contract, or uses a space that Tailwise does not support."""


class CheckpointError(TailwiseError):
    """A checkpoint is missing, truncated, corrupted, of another version or of another model."""


class NotBuiltError(TailwiseError):
    """An option is planned but not built yet; it is refused because a no-op would be a lie."""


class TrustError(TailwiseError):
    """A run that is not known to be this user's names code that opening it would execute."""


class LockedError(TailwiseError):
    """Another process writes into the folder of a run."""
