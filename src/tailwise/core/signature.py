"""Signatures by which a user's own files are known again: HMAC-SHA256 with a key that only this user can read.

The key lies in $XDG_CONFIG_HOME/tailwise/key (default: ~/.config/tailwise/key), mode 0600, and is made on first use. A
signature says that somebody who can read that key wrote exactly these files, and nothing else; see docs/security.md.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
import os
import re
import secrets
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tailwise.core.errors import ConfigError

FILE = "signature.json"
FORMAT = 1
_KEY_BYTES = 32
_LARGEST = 4096  # bytes of a signature file; a real one has about 400
_KEY = re.compile(rb"[0-9a-f]{64}\n")


@dataclass(frozen=True)
class Origin:
    """Whether files are this user's own, unchanged; reason: why not, as the end of a sentence."""

    own: bool
    reason: str = ""


def key_path() -> Path:
    """Where this user's key lies. A relative XDG_CONFIG_HOME is ignored, as its specification demands."""
    configured = os.environ.get("XDG_CONFIG_HOME", "")
    try:
        home = Path(configured) if os.path.isabs(configured) else Path.home() / ".config"
    except RuntimeError as error:
        raise ConfigError(f"there is no place for the key of this user ({error}); set XDG_CONFIG_HOME.") from error
    return home / "tailwise" / "key"


def sign(kind: str, digests: Mapping[str, str]) -> bytes:
    """The text of a signature file over file names and their SHA-256 (hex); makes the key if there is none.

    kind: what is signed, so that the signature of one kind of folder is none for another.
    """
    key = _read_key() or _create_key()
    content = {"format": FORMAT, "kind": kind, "files": dict(sorted(digests.items()))}
    signature = {**content, "key": _name_of(key), "hmac": _hmac(key, content)}
    return (json.dumps(signature, indent=1) + "\n").encode()


def origin_of(folder: Path, kind: str, digests: Mapping[str, str]) -> Origin:
    """Compare the signature in `folder` with what was read there: `digests` by file name, SHA-256 in hex."""
    try:
        text = _read_small(folder / FILE)
        if text is None:
            return Origin(False, "it carries no signature")
        stored = json.loads(text)
    except (OSError, ValueError, RecursionError) as error:
        return Origin(False, f"its {FILE} cannot be read ({error})")
    if not isinstance(stored, dict) or not isinstance(stored.get("hmac"), str):
        return Origin(False, f"its {FILE} holds no signature")
    try:
        key = _read_key()
    except (ConfigError, OSError) as error:
        return Origin(False, f"the key of this user cannot be used: {error}")
    if key is None or stored.get("key") != _name_of(key):
        return Origin(False, "it was signed with another key, by another user or on another computer")
    content = {"format": FORMAT, "kind": kind, "files": dict(sorted(digests.items()))}
    if hmac.compare_digest(stored["hmac"].encode(), _hmac(key, content).encode()):
        return Origin(True)
    signed = stored.get("files")
    changed = [name for name, digest in digests.items() if not isinstance(signed, dict) or signed.get(name) != digest]
    return Origin(False, f"{' and '.join(changed) or FILE} was changed after it was signed")


def _hmac(key: bytes, content: Mapping[str, object]) -> str:
    return hmac.new(key, json.dumps(content, sort_keys=True).encode(), hashlib.sha256).hexdigest()


def _name_of(key: bytes) -> str:
    """Short name of a key; the key cannot be computed from it."""
    return hashlib.sha256(b"tailwise key\n" + key).hexdigest()[:16]


def _read_key() -> bytes | None:
    """This user's key, None when there is none yet."""
    path = key_path()
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except FileNotFoundError:
        return None
    with open(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise ConfigError(f"{path} is not a file; move it away, and a new key is made.")
        if status.st_uid != os.geteuid() or status.st_mode & 0o077:
            raise ConfigError(f"{path} belongs to another user or can be read by others; make it yours, mode 600.")
        text = file.read(2 * _KEY_BYTES + 2)
    if _KEY.fullmatch(text) is None:
        raise ConfigError(f"{path} holds no key; move it away, and a new one is made.")
    return bytes.fromhex(text.decode().strip())


def _create_key() -> bytes:
    """Make the key; of several processes that do so at once, all get the key of the first."""
    path = key_path()
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(6)}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with open(descriptor, "wb") as file:
            file.write(secrets.token_hex(_KEY_BYTES).encode() + b"\n")
            file.flush()
            os.fsync(descriptor)
        with contextlib.suppress(FileExistsError):  # another process was first: its key is the key
            os.link(temporary, path)  # unlike a rename, never replaces a key that is there
    finally:
        temporary.unlink()
    key = _read_key()
    if key is None:
        raise ConfigError(f"{path} vanished while it was created; is something else tidying up its folder?")
    return key


def _read_small(path: Path) -> bytes | None:
    """The content of a small file, None when there is none; a pipe, a link or a large file is an OSError."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW)
    except FileNotFoundError:
        return None
    with open(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError("it is not a file")
        text = file.read(_LARGEST + 1)
    if len(text) > _LARGEST:
        raise OSError(f"it has more than {_LARGEST} bytes")
    return text
