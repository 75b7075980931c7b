"""Results of a sweep in the dump directory, one file per setting, to continue it later.

A result is reused only if its compilations have the same keys, which identify the kernels, the
compiler's options and the versions; a worker computes them by tracing. Settings with an unreadable
result are run again.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import msgspec

from pallas_debug.errors import DumpDirectoryError, DumpFormatError
from pallas_debug.store import files, layout
from pallas_debug.store.writer import Store
from pallas_debug.sweeps.grid import Setting, fingerprint
from pallas_debug.sweeps.task import KnownResult

_KIND, _SCHEMA = "setting", 2
_MAX_RECORD = 1 << 20


class Journal:
    """The results of one sweep.

    Args:
      store: the dump directory.
      identity: digest of the function, arguments and options, equal for equal sweeps.
    """

    def __init__(self, store: Store, identity: Mapping[str, Any]) -> None:
        self._store = store
        self.folder = f"{layout.SWEEPS}/{fingerprint(identity)[:16]}"

    def known(self, setting: Setting) -> dict[str, KnownResult]:
        """Return the results of earlier runs for a setting, by target."""
        path = self._store.root / self._file(setting)
        try:
            data = files.read(path, self._store.root, _MAX_RECORD)
            document: Any = msgspec.json.decode(data)
            head = (document.get("tool"), document.get("kind"), document.get("schema"))
            if head != ("pallas-debug", _KIND, _SCHEMA):
                return {}
            found = msgspec.convert(document.get("results"), list[KnownResult])
        except (OSError, DumpFormatError, DumpDirectoryError):
            return {}
        except (msgspec.MsgspecError, AttributeError, RecursionError, ValueError):
            return {}
        return {k.result.target: k for k in found if k.result.setting == setting.texts and k.keys}

    def put(self, setting: Setting, results: tuple[KnownResult, ...]) -> None:
        """Save the results of a setting, except those that may differ next time."""
        lasting = [k for k in results if k.result.failure is None or k.result.failure.is_final]
        head = {"tool": "pallas-debug", "kind": _KIND, "schema": _SCHEMA}
        document = head | {"results": msgspec.to_builtins(lasting)}
        text = json.dumps(document, ensure_ascii=False, indent=1)
        self._store.put_document(self._file(setting), text.encode(errors="replace"))

    def _file(self, setting: Setting) -> str:
        return f"{self.folder}/{fingerprint(setting.texts)[:16]}{layout.DOCUMENT}"
