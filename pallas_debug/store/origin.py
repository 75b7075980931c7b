"""Signatures that identify dumps made by this user on this machine.

Each file that `reproduce` runs has a neighbour with an HMAC-SHA256 over it and the kernel's digest.
The key is a file in the user's state directory and never part of a dump, so a dump that was sent
elsewhere and comes back changed is not taken for a local one. A signature says who wrote a file,
not whether it is harmless.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import os
import secrets
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import TypeVar

from pallas_debug.errors import DumpDirectoryError
from pallas_debug.store.layout import SIGNATURE
from pallas_debug.store.remote.paths import ObjectPath

_KEY = "origin.key"
_KEY_BYTES = 32
_MAX_SIGNATURE = 256
_PURPOSE = b"pallas-debug dump 1\0"

C = TypeVar("C", bytes, bytes | Path)


def signed(digest: str, files: Mapping[str, C], name: str) -> dict[str, C]:
    """Return the files of a folder, adding the signature of `name` if it is among them.

    Without a key there is no signature, and `reproduce --run` asks first.

    Args:
      digest: digest of the kernel.
    """
    content = files.get(name)
    key = _key(is_made=True) if isinstance(content, bytes) else None
    if key is None or not isinstance(content, bytes):
        return dict(files)
    return {**files, name + SIGNATURE: _signature(key, digest, name, content).encode() + b"\n"}


def is_ours(digest: str, file: Path, content: bytes) -> bool:
    """Return whether this user signed a kernel file's `content` on this machine."""
    key = _key(is_made=False)
    if key is None:
        return False
    beside = file.with_name(file.name + SIGNATURE)
    if isinstance(beside, ObjectPath):
        return _is_signature(_of_object(beside), key, digest, file.name, content)
    try:
        descriptor = os.open(beside, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        with os.fdopen(descriptor, "rb") as opened:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                return False
            given = opened.read(_MAX_SIGNATURE).strip()
    except OSError:
        return False
    return _is_signature(given, key, digest, file.name, content)


def _of_object(path: ObjectPath) -> bytes:
    from pallas_debug.store.remote import objects

    try:
        return (objects.contents(path, _MAX_SIGNATURE) or b"").strip()
    except DumpDirectoryError:
        return b""


def _is_signature(given: bytes, key: bytes, digest: str, name: str, content: bytes) -> bool:
    return hmac.compare_digest(given, _signature(key, digest, name, content).encode())


def key_file() -> Path:
    """Return the key's path; honours `XDG_STATE_HOME`."""
    given = os.environ.get("XDG_STATE_HOME", "")
    state = Path(given) if given.startswith("/") else Path("~/.local/state").expanduser()
    return state / "pallas-debug" / _KEY


def _signature(key: bytes, digest: str, name: str, content: bytes) -> str:
    hashed = hashlib.sha256(content).hexdigest()
    signed_text = "\0".join((digest, name, hashed)).encode(errors="surrogatepass")
    return hmac.new(key, _PURPOSE + signed_text, hashlib.sha256).hexdigest()


def _key(*, is_made: bool) -> bytes | None:
    """Return the key; None if it cannot be read or created, or if others can access it."""
    try:
        path = key_file()
        found = _read(path)
        if found is None and is_made and not path.exists():
            _make(path)
            found = _read(path)
    except (OSError, RuntimeError):  # RuntimeError: there is no home directory
        return None
    return found


def _read(path: Path) -> bytes | None:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        return None
    with os.fdopen(descriptor, "rb") as opened:
        status = os.fstat(descriptor)
        is_private = status.st_uid == os.geteuid() and not status.st_mode & 0o077
        key = opened.read(_KEY_BYTES + 1) if stat.S_ISREG(status.st_mode) and is_private else b""
    return key if len(key) == _KEY_BYTES else None


def _make(path: Path) -> None:
    """Write a new key, unless another process does so first."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    temporary = path.with_name(f".{path.name}-{secrets.token_hex(8)}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as opened:
            opened.write(secrets.token_bytes(_KEY_BYTES))
            opened.flush()
            os.fsync(descriptor)
        with contextlib.suppress(FileExistsError):
            path.hardlink_to(temporary)
    finally:
        temporary.unlink(missing_ok=True)
