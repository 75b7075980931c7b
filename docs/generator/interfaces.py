"""Pages on what programs call: the public Python API."""

from __future__ import annotations

import importlib

from generator.markdown import first_line, page, table
from generator.objects import described_class, described_function


def public_functions() -> list[str]:
    """Names of the functions of `import pallas_debug`."""
    import pallas_debug

    return sorted(pallas_debug._HOMES)


def python() -> str:
    """The public API of `pallas_debug`."""
    import pallas_debug

    parts = [
        "The public API of `import pallas_debug`. The import does not load jax; names are imported "
        "lazily. The objects that these functions return have the fields of the dump's files, "
        "described under [dump format](dump-format.md).",
    ]
    for name in public_functions():
        parts += described_function(f"pallas_debug.{name}", getattr(pallas_debug, name))
    from pallas_debug._api.check import Report
    from pallas_debug._api.compare import ComparisonReport
    from pallas_debug._api.compile import Compiled
    from pallas_debug.comparison.compare import ComparedOutput
    from pallas_debug.model import Dump
    from pallas_debug.session import Options, Session
    from pallas_debug.store import DumpReader, StoredCompilation, StoredKernel
    from pallas_debug.sweeps.result import SettingResult, SweepResult
    from pallas_debug.verdict.result import Outcome, Verdict

    parts += ["## Objects"]
    kinds = (Dump, Verdict, Outcome, Report, ComparisonReport, ComparedOutput, SweepResult)
    kinds += (SettingResult, Compiled, Session, Options, DumpReader, StoredKernel)
    kinds += (StoredCompilation,)
    for kind in kinds:
        parts += described_class(kind)
    parts += ["## Exceptions", "All are in `pallas_debug.errors`."]
    errors = importlib.import_module("pallas_debug.errors")
    rows = [
        [f"`{n}`", f"`{e.__bases__[0].__name__}`", first_line(e)]
        for n, e in vars(errors).items()
        if isinstance(e, type) and issubclass(e, Exception)
    ]
    parts.append(table(["exception", "is a", "raised for"], rows))
    return page("Python", "pallas_debug/__init__.py and what it exports", parts)
