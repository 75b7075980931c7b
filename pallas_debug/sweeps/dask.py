"""Executor on the workers of a Dask cluster, which detects that the cluster has gone away."""

from __future__ import annotations

import concurrent.futures
import contextlib
import importlib
import time
from collections.abc import Callable
from typing import Any

from pallas_debug import defaults
from pallas_debug.errors import CannotRunError

INSTALL = "pip install 'pallas-debug[dask]'"


class DaskWorkers(concurrent.futures.Executor):
    """A running Dask cluster; use as a context manager.

    Args:
      address: of its scheduler, such as `tcp://host:8786`.

    Raises:
      CannotRunError: the extra is missing, or no scheduler answers.
    """

    def __init__(self, address: str) -> None:
        try:
            distributed: Any = importlib.import_module("distributed")
        except ImportError as error:
            raise CannotRunError(
                f"a sweep on Dask needs the package distributed, which is not installed: {INSTALL}"
            ) from error
        self._address = address
        try:
            self._client: Any = distributed.Client(
                address, timeout=defaults.DASK_TIMEOUT, set_as_default=False
            )
        except (OSError, TimeoutError, ValueError, TypeError) as error:
            reason = str(error) or "no answer"
            raise CannotRunError(
                f"no Dask scheduler answers at {address} ({type(error).__name__}: {reason}). Start "
                "one with `dask scheduler`, and workers with `dask worker ADDRESS --nthreads 1`, "
                "or check the address"
            ) from error
        self._executor = self._client.get_executor(pure=False, retries=0)
        self._alone_since: float | None = None

    def submit(
        self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any
    ) -> concurrent.futures.Future[Any]:
        submitted: concurrent.futures.Future[Any] = self._executor.submit(fn, *args, **kwargs)
        return submitted

    def problem(self) -> str | None:
        """Return why no more results will arrive, or None while the cluster is available."""
        now = time.monotonic()
        is_connected = self._client.status == "running"
        if is_connected and self._num_workers() > 0:
            self._alone_since = None
            return None
        self._alone_since = now if self._alone_since is None else self._alone_since
        if now - self._alone_since < defaults.DASK_TIMEOUT:
            return None
        if is_connected:
            return (
                f"the Dask scheduler at {self._address} has had no worker for "
                f"{defaults.DASK_TIMEOUT:.0f} s. Start one with `dask worker {self._address} "
                "--nthreads 1`, then run the same sweep again: it continues"
            )
        return self.lost()

    def lost(self) -> str:
        """Return an explanation for a task that Dask cancelled."""
        return (
            f"the Dask scheduler at {self._address} is gone or dropped the sweep. Start it again, "
            "then run the same sweep again: it continues"
        )

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Disconnect from the cluster, which keeps running."""
        with contextlib.suppress(Exception):  # the scheduler may be gone
            self._client.close(timeout=defaults.DASK_TIMEOUT if wait else 0)

    def _num_workers(self) -> int:
        with contextlib.suppress(Exception):  # it is just losing the connection
            return len(self._client.scheduler_info(n_workers=-1)["workers"])
        return 0


def executor_of(text: str) -> DaskWorkers:
    """Return the executor that `--executor` names.

    Raises:
      UsageError: the value is not an executor.
      CannotRunError: the executor cannot be used here.
    """
    from pallas_debug.errors import UsageError

    kind, _, address = text.partition(":")
    if kind != "dask" or not address:
        raise UsageError(
            f"--executor {text!r} is not an executor: write dask:ADDRESS, with the address of a "
            "running scheduler, such as dask:tcp://host:8786"
        )
    return DaskWorkers(address)
