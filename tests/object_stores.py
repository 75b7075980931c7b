"""Object stores for tests: fsspec's in memory, and an S3 server (moto's) on this machine."""

from __future__ import annotations

import itertools
import logging
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

_numbers = itertools.count()


@dataclass(frozen=True, kw_only=True)
class S3:
    """A server with one bucket.

    Attributes:
      endpoint: its URL.
      folder: URL of a folder of the bucket that no other test uses.
    """

    endpoint: str
    folder: str

    def request(self, method: str, path: str, body: bytes | None = None) -> bytes:
        asked = urllib.request.Request(f"{self.endpoint}/{path}", method=method, data=body)
        with urllib.request.urlopen(asked) as answer:
            return bytes(answer.read())


@pytest.fixture(scope="session")
def s3_endpoint() -> Iterator[str]:
    """URL of an S3 server in a thread of this process, which starts with its first use."""
    server = pytest.importorskip("moto.server", reason="moto is not installed (extra dev)")
    pytest.importorskip("s3fs", reason="s3fs is not installed (extra remote)")
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    serving = server.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    serving.start()
    host, port = serving.get_host_and_port()
    endpoint = f"http://{host}:{port}"
    S3(endpoint=endpoint, folder="").request("PUT", "bucket")
    yield endpoint
    serving.stop()


@pytest.fixture
def s3(s3_endpoint: str, monkeypatch: pytest.MonkeyPatch, fresh_stores: None) -> S3:
    """The server, with variables by which this process and those that it starts find it."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3_endpoint)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "tests")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "tests")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    return S3(endpoint=s3_endpoint, folder=f"s3://bucket/{next(_numbers)}/dumps")


@pytest.fixture
def fresh_stores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An empty cache of copies, and no connections, which keep endpoint and credentials."""
    pytest.importorskip("fsspec", reason="fsspec is not installed (extra remote)")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    forget()
    yield
    forget()


def forget() -> None:
    """Begin as a new process does: without connections, and without folders to upload."""
    from fsspec.spec import AbstractFileSystem

    from pallas_debug.store import remote

    def kinds(of: type) -> Iterator[type]:
        for kind in of.__subclasses__():
            yield kind
            yield from kinds(kind)

    for kind in set(kinds(AbstractFileSystem)):
        kind.clear_instance_cache()
    remote.upload_to.cache_clear()


@pytest.fixture
def in_memory(fresh_stores: None) -> Callable[[], str]:
    """Makes the URL of a new folder in memory."""
    return lambda: f"memory://tests/{next(_numbers)}/dumps"
