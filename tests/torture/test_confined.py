"""The confined process that runs programs of others: what it is given, and its limits."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest

from pallas_debug.reproduce.confined import environment

ENVIRONMENT = """
import json, os, resource, sys
print(json.dumps({
    "cwd": os.listdir(), "environment": dict(os.environ), "session": os.getsid(0) == os.getpid(),
    "limits": [resource.getrlimit(k)[0] for k in (
        resource.RLIMIT_DATA, resource.RLIMIT_FSIZE, resource.RLIMIT_NOFILE, resource.RLIMIT_CORE,
        resource.RLIMIT_CPU)],
    "files": sorted(int(n) for n in os.listdir("/proc/self/fd")),
}))
"""


def confined(code: str, *, seconds: float = 20) -> tuple[int | None, str, str]:
    from pallas_debug.reproduce.confined import ConfinedProcess

    with ConfinedProcess(code, seconds=seconds) as child:
        return child.wait(), child.out, child.err


def test_the_child_has_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    secrets = dict.fromkeys(("AWS_SECRET_ACCESS_KEY", "PYTHONPATH", "PYTHONSTARTUP", "LD_PRELOAD_X", "LIBTPU_INIT_ARGS", "XLA_FLAGS", "GITHUB_TOKEN", "SSH_AUTH_SOCK", "DISPLAY"), "secret")  # fmt: skip
    for name, value in secrets.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("TPU_LIBRARY_PATH", "/somewhere/libtpu.so")
    code, out, err = confined(ENVIRONMENT)
    assert code == 0, err
    found = json.loads(out)
    assert found["cwd"] == []
    given = found["environment"]
    assert given.pop("LC_CTYPE", "C.UTF-8") == "C.UTF-8"  # Python's own
    assert set(given) == set(environment(Path("/home")))
    assert given["TPU_LIBRARY_PATH"] == "/somewhere/libtpu.so"
    assert "secret" not in given.values()
    assert given["HOME"] == given["TMPDIR"] != os.environ.get("HOME")
    assert not Path(given["HOME"]).exists()
    assert found["session"]
    data, file_size, files, core, cpu = found["limits"]
    assert (data, file_size, files, core) == (8 * 2**30, 16 * 2**20, 256, 0)
    assert 20 <= cpu <= 20 * (os.cpu_count() or 1) + 10
    assert found["files"] == [0, 1, 2, 3]  # 3 is the listing's own


def test_the_childs_limits() -> None:
    code, _, err = confined("bytearray(10**12)")
    assert code == 1
    assert "MemoryError" in err
    code, out, err = confined("print('x' * 10**8)")
    assert code != 0
    assert "File too large" in err
    assert len(out) <= 2**20


def test_the_childs_children_end_with_it(tmp_path: Path) -> None:
    from pallas_debug.reproduce.confined import ConfinedProcess

    pids, whole = tmp_path / "pid", tmp_path / "whole"
    starts = (
        "import os, subprocess, sys, time\n"
        f"p = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        f"open({str(whole)!r}, 'w').write(str(p.pid))\n"
        f"os.rename({str(whole)!r}, {str(pids)!r})\ntime.sleep(600)"
    )
    with ConfinedProcess(starts, seconds=60) as child:
        while not pids.exists():
            assert child.process.poll() is None, child.err
            time.sleep(0.01)
        child._seconds = 0.1
        assert child.wait() is None
    assert _ends(pids.read_text())


def _ends(pid: str) -> bool:
    """Return whether a killed process is soon gone, or waits only for its parent."""
    for _ in range(1200):
        try:
            state = Path("/proc", pid, "stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            return True
        if state == "Z":
            return True
        time.sleep(0.05)
    return False
