"""Generator of the dumps next to this file, using the real compiler: `python make.py`.

In the output, the directories of this machine are replaced with `…`. The record of a run is written
by hand: findings of the interpreters are tested elsewhere.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from pallas_debug.findings.faults import Fault
from pallas_debug.model import Finding, PrintRecord, RunRecord, SourceLine, Witness
from pallas_debug.store import Store, open_dumps

HERE = Path(__file__).resolve().parent
ROOT = HERE / "dumps"
KERNELS = {
    "double": ["f32[32,128]"],
    "unaligned": ["i32[1]", "f32[8,512]"],
    "running": ["f32[8,128]"],
}


SCHEDULE = ("bundles", "utilization", "delays")
"""Texts of the schedule that are kept: those from which costs are computed."""


def main() -> None:
    shutil.rmtree(ROOT, ignore_errors=True)
    command = Path(sys.executable).with_name("pallas-debug")
    for name, arguments in KERNELS.items():
        given = [word for argument in arguments for word in ("--arg", argument)]
        dump = [command, "dump", f"listed:{name}", *given, "--to", ROOT, "-t", "v5e"]
        subprocess.run(dump, cwd=HERE, check=False)
    shutil.rmtree(ROOT / "runs")
    for program in ROOT.glob("*/program.py"):  # no face of the lists shows it
        program.unlink()
    for text in ROOT.glob("*/*/schedule/*"):
        if text.stem not in SCHEDULE:
            text.unlink()
    put_run()
    for path in [p for p in ROOT.rglob("*") if p.is_file()]:
        data = path.read_bytes()
        for folder in (HERE, HERE.parents[2], Path(sys.prefix)):
            data = data.replace(str(folder).encode(), "…".encode())
        path.write_bytes(data)
    for left in (".locks", ".tmp"):
        shutil.rmtree(ROOT / left, ignore_errors=True)
    subprocess.run([sys.executable, HERE.parents[1] / "records.py", ROOT], check=True)


def put_run() -> None:
    """A test with a finding and two prints."""
    stored = {k.kernel.name: k for k in open_dumps(ROOT) if k.kernel is not None}
    text = "    o_ref[...] = x_ref[...] + x_ref[...]"
    line = (HERE / "listed.py").read_text().split("\n").index(text) + 1
    source = SourceLine(file=str(HERE / "listed.py"), line=line, text=text)
    record = RunRecord(
        run="20261121-120000-1",
        name="tests/test_double.py::test_double[f32]",
        kernels=(stored["double"].name,),
        findings=(
            Finding(
                kind=Fault.OUT_OF_BOUNDS_READ,
                kernel="double",
                message="x_ref[32:40, 0:128] reaches 8 rows past x_ref",
                cause="the grid has 5 points for 4 blocks of x_ref",
                advice="divide the rows by the rows of a block",
                witness=Witness(source=source, grid_point=(4,)),
                count=2,
            ),
        ),
        prints=tuple(
            PrintRecord(
                kernel="double", text=f"row {i} \x1b[31m[red]", source=source, grid_point=(i,)
            )
            for i in range(2)
        ),
    )
    Store(ROOT).put_run(record)


if __name__ == "__main__":
    main()
