"""Messages for errors of an object store: the request, where, why it failed, what to do."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator

from pallas_debug import defaults
from pallas_debug.errors import DumpDirectoryError, UsageError
from pallas_debug.render import one_line
from pallas_debug.store.remote.paths import ObjectPath


@contextlib.contextmanager
def explaining(verb: str, path: ObjectPath) -> Iterator[None]:
    """Turn exceptions of client libraries into `DumpDirectoryError`.

    An object that is not there stays a `FileNotFoundError` when reading.
    """
    bucket, began = path.parts[:2], time.monotonic()
    until, message = _away.get(bucket, (0.0, ""))
    if began < until:
        raise DumpDirectoryError(message)
    try:
        yield
    except (DumpDirectoryError, UsageError):
        raise
    except Exception as error:
        is_absent = isinstance(error, (FileNotFoundError, NotADirectoryError))
        if is_absent and verb == "read" and not is_missing_bucket(error):
            raise
        sentence = _sentence(verb, path, error, time.monotonic() - began)
        if _did_not_answer(error):
            _away[bucket] = time.monotonic() + defaults.OBJECT_STORE_PAUSE, sentence
        raise DumpDirectoryError(sentence) from error


_away: dict[tuple[str, ...], tuple[float, str]] = {}
"""Buckets that did not answer: when to ask them again, and the message."""


def _did_not_answer(error: Exception) -> bool:
    return any(one in name for name in _names(error) for one in _AWAY)


def is_missing_bucket(error: Exception) -> bool:
    """Return whether a `FileNotFoundError` is about the bucket, rather than about an object."""
    message = f"{error} {error.__cause__ or ''}".lower()
    return "nosuchbucket" in message or "bucket does not exist" in message


def is_empty_range(error: Exception) -> bool:
    """Return whether a store refused to send the first bytes of an empty object."""
    message = f"{error!r} {error.__cause__!r}".lower()
    return "invalidrange" in message or "range is not satisfiable" in message or "416" in message


_CREDENTIALS = {
    "s3": "Log in with `aws configure` or `aws sso login`, or set AWS_ACCESS_KEY_ID and "
    "AWS_SECRET_ACCESS_KEY",
    "gs": "Log in with `gcloud auth application-default login`, or set "
    "GOOGLE_APPLICATION_CREDENTIALS",
}
_CREDENTIALS |= {"s3a": _CREDENTIALS["s3"], "gcs": _CREDENTIALS["gs"]}
_ENDPOINTS = {"s3": "AWS_ENDPOINT_URL", "s3a": "AWS_ENDPOINT_URL"}

_NO_CREDENTIALS = ("NoCredentials", "PartialCredentials", "CredentialsError", "RefreshError")
_BAD_CREDENTIALS = (
    "InvalidAccessKeyId", "SignatureDoesNotMatch", "ExpiredToken", "TokenRefreshRequired",
    "Access Key Id you provided does not exist", "Invalid Credentials", "token has expired",
)  # fmt: skip
_AWAY = ("Connect", "Timeout", "Disconnected", "EndpointConnection", "gaierror", "SSLError")
"""Parts of exception names which mean that the server did not answer."""


def _sentence(verb: str, path: ObjectPath, error: Exception, seconds: float) -> str:
    where, names, text = one_line(path), _names(error), _text(error)
    bucket = f"{path.scheme}://{path.parts[1] if len(path.parts) > 1 else ''}"
    begin = f"cannot {verb} {where}: "
    login = _CREDENTIALS.get(path.scheme, "Give them as the store's fsspec package expects")
    if any(one in name for name in names for one in _NO_CREDENTIALS):
        return f"{begin}there are no credentials for {bucket} ({text}). {login}."
    if any(one in text for one in _BAD_CREDENTIALS):
        return f"{begin}the credentials for {bucket} are not valid ({text}). {login}."
    if "PermissionError" in names or "403" in text or "Forbidden" in text:
        need = "read, list and write" if verb == "write" else "read and list"
        return (
            f"{begin}{bucket} refuses access ({text}). Ask its owner for the right to {need} "
            "objects there, or use other credentials."
        )
    if isinstance(error, FileNotFoundError):
        return (
            f"{begin}there is no bucket {bucket} ({text}). Check its name, or create it: "
            "pallas-debug creates folders in buckets, but not buckets."
        )
    if _did_not_answer(error):
        variable = _ENDPOINTS.get(path.scheme)
        check = f"the network and {variable}" if variable else "the network"
        return (
            f"{begin}the server did not answer for {seconds:.0f} s ({text}). Check {check}, then "
            "run again: the kernels stored until then are complete, and are not compiled again."
        )
    return f"{begin}{text}. If it can be read with other tools, run again."


def _names(error: BaseException | None) -> list[str]:
    """Return the names of the classes of an exception and of its causes."""
    found: list[str] = []
    while error is not None and len(found) < 100:
        found += [kind.__name__ for kind in type(error).__mro__[:-2]]
        error = error.__cause__ or error.__context__
    return found


def _text(error: Exception) -> str:
    message = one_line(" ".join(str(error).split()))[:200]
    return f"{type(error).__name__}: {message}" if message else type(error).__name__
