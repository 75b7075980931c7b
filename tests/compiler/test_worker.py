"""The compiler process itself: its imports and its environment."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from subprocess import CompletedProcess

import pytest

from pallas_debug.compiler.pool import Pool, PoolSettings

Module = Callable[[str], bytes]
Run = Callable[..., CompletedProcess[str]]

_IMPORT = re.compile(r"^import time:\s+\d+ \|\s+\d+ \|\s+(?P<name>[\w.]+)$", re.MULTILINE)

ON_A_TPU_HOST = """
import json, os, time
from pathlib import Path
before = dict(os.environ)
import jax
added = {k: v for k, v in os.environ.items() if before.get(k) != v}
from pallas_debug.compiler.pool import Pool, PoolSettings
with Pool(PoolSettings(jobs=1)) as pool:
    pool.warm()
    (pid,) = pool.pids()
    while not (environment := Path(f"/proc/{pid}/environ").read_text()):
        time.sleep(0.01)  # the kernel has not filled it in yet
    child = dict(entry.split("=", 1) for entry in environment.split("\\0") if entry)
print(json.dumps([added, child]))
"""


@pytest.mark.slow
def test_a_worker_never_imports_jax(module: Module, monkeypatch: pytest.MonkeyPatch) -> None:
    """jaxlib is enough for libtpu, and a second of CPU cheaper."""
    monkeypatch.setenv("PYTHONPROFILEIMPORTTIME", "1")  # Python lists imports on standard error
    with (
        Pool(PoolSettings(jobs=1)) as pool,
        pool.compile(module("add"), topology="v5e:2x2") as outcome,
    ):
        assert outcome.reply is not None
        assert outcome.reply.error is None
        imported = set(_IMPORT.findall(outcome.log.decode()))
    assert {"pallas_debug.bridge.libtpu", "pallas_debug.bridge.jaxcompat"} <= imported
    assert imported.isdisjoint({"jax", "jax._src", "msgspec", "libtpu", "textual", "rich"})


@pytest.mark.slow
def test_what_jax_sets_on_a_tpu_host_reaches_the_worker(run_python: Run) -> None:
    done = run_python("-c", ON_A_TPU_HOST, JAX_FORCE_TPU_INIT="1")
    assert done.returncode == 0, done.stderr
    added, child = json.loads(done.stdout)
    assert {"TPU_ML_PLATFORM", "TPU_ML_PLATFORM_VERSION", "LIBTPU_INIT_ARGS"} <= added.keys()
    flags = added.pop("LIBTPU_INIT_ARGS").split()
    assert set(flags) <= set(child["LIBTPU_INIT_ARGS"].split())
    assert added.items() <= child.items()
