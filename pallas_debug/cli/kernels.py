"""`doctor --kernels`: list of the bundled kernels and their specs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pallas_debug.cli import output
from pallas_debug.cli.exits import Exit

if TYPE_CHECKING:
    from pallas_debug_kernels import BundledOperation
    from pallas_debug_kernels.broken import BrokenKernel


def show(as_json: bool) -> Exit:
    """Print the kernels and their specs, the broken ones last; as JSON with all arguments."""
    from pallas_debug_kernels import operations
    from pallas_debug_kernels.broken import BROKEN

    if as_json:
        output.print_json(
            "doctor-kernels",
            {
                "kernels": list(map(_as_json, operations())),
                "broken": list(map(_broken_as_json, BROKEN)),
            },
        )
    else:
        rows = [[op.name, op.summary, _by_tag(op)] for op in operations()]
        rows += [[kernel.name, kernel.summary, f"fault: {kernel.fault}"] for kernel in BROKEN]
        output.print_table(["kernel", "", "specs"], rows)
    return Exit.OK


def _by_tag(op: BundledOperation) -> str:
    """Return the spec names by tag, such as `small: f32, bf16; bench: f32_4m`."""
    tags = dict.fromkeys(tag for spec in op.specs for tag in spec.tags)
    return "; ".join(f"{tag}: {', '.join(spec.name for spec in op.tagged(tag))}" for tag in tags)


def _as_json(op: BundledOperation) -> dict[str, Any]:
    return {
        "name": op.name,
        "summary": op.summary,
        "specs": [
            {
                "name": spec.name,
                "tags": spec.tags,
                "args": [_argument(arg) for arg in spec.args],
                "kwargs": {name: _plain(value) for name, value in spec.kwargs.items()},
                "not_on": spec.not_on,
            }
            for spec in op.specs
        ],
    }


def _broken_as_json(kernel: BrokenKernel) -> dict[str, Any]:
    return {
        "name": kernel.name,
        "summary": kernel.summary,
        "fault": kernel.fault,
        "file": kernel.file,
        "line": kernel.line,
        "args": [_argument(arg) for arg in kernel.args],
    }


def _argument(arg: Any) -> str:
    """Format an abstract array for `dump --arg`, such as `float32[8,128]`."""
    if hasattr(arg, "shape") and hasattr(arg, "dtype"):
        return f"{arg.dtype.name}[{','.join(map(str, arg.shape))}]"
    if isinstance(arg, tuple):
        return f"({', '.join(map(_argument, arg))})"
    return str(arg)


def _plain(value: Any) -> Any:
    return value if isinstance(value, bool | int | float | str | None) else _argument(value)
