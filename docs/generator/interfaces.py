"""Pages on what programs call: the public Python API, and the hooks for plugins."""

from __future__ import annotations

import importlib

from generator.markdown import docstring, first_line, page, table
from generator.objects import described_class, described_function, signature


def public_functions() -> list[str]:
    """Names of the functions of `import pallas_debug`, without the marker of plugins."""
    import pallas_debug

    return sorted(pallas_debug._HOMES.keys() - {"hookimpl"})


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


def hooks() -> str:
    from pallas_debug import hooks as module

    parts = [
        f"Hooks use [pluggy](https://pluggy.readthedocs.io) with the project name "
        f"`{module.GROUP}`; a distribution registers a plugin under the entry-point group of the "
        "same name. They are called in the thread of the event. An implementation may take fewer "
        "arguments than the hook has. See a [complete plugin](extending.md)."
    ]
    for name, function in vars(module.Specs).items():
        if name.startswith("_"):
            continue
        opts = getattr(function, f"{module.GROUP}_spec")
        first = "The first result that is not `None` counts." if opts["firstresult"] else None
        parts += [
            f"## {name}",
            f"```python\n{signature(function)}\n```",
            *docstring(function),
            *filter(None, [first]),
        ]
    return page("Hooks", "pallas_debug/hooks.py", parts)
