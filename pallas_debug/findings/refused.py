"""Cases of faults that prevent compilation or end a run, with the few facts that they need.

Without a cause or advice of its own, a case gets the catalogue's of its kind.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pallas_debug import explain
from pallas_debug.findings.case import Case, Test, has, is_
from pallas_debug.findings.faults import Fault

# Facts


def mib(size: int) -> str:
    return f"{size / (1 << 20):.4g} MiB"


def by_size(limits: Mapping[str, int]) -> str:
    """Format sizes by target: `16 MiB on v5e, v5p; 32 MiB on v6e`."""
    return "; ".join(
        f"{mib(size)} on {', '.join(t for t, s in limits.items() if s == size)}"
        for size in dict.fromkeys(limits.values())
    )


def progress(done: int, total: int, seconds: float) -> str:
    """Format the progress along a grid: `3 of 8 (1.5 s each: the rest takes about 9 s)`."""
    each = seconds / done if done else 0.0
    rest = f" ({each:,.2g} s each: the rest takes about {each * (total - done):,.0f} s)"
    return f"{done + 1:,} of {total:,}{rest if done else ''}"


REPLACEMENTS = {
    "load": "read the ref: ref[index]; with a mask, load(ref.at[index], mask=…) of "
    "jax.experimental.pallas.triton for a GPU, or of jax.experimental.pallas.tpu",
    "store": "write to the ref: ref[index] = value; with a mask, store(ref.at[index], value, "
    "mask=…) of jax.experimental.pallas.triton for a GPU, or of jax.experimental.pallas.tpu",
    "swap": "read the ref, then write to it: ref[index] = value",
    "dot": "write jnp.dot",
    "repeat": "write jnp.tile, as in jnp.tile(x, (n, 1)) for axis 0; jnp.repeat has another order",
    "ANY": "write pl.ANY",
    "TPUCompilerParams": "write pltpu.CompilerParams",
    "TritonCompilerParams": "write CompilerParams, of jax.experimental.pallas.triton",
    "TensorCoreMesh": "it needs jax ≥ 0.11; before, pltpu.create_tensorcore_mesh makes the mesh",
    "TPUMemorySpace": "write pltpu.MemorySpace, and pl.ANY for TPUMemorySpace.ANY",
}
"""Replacements of names that the installed Pallas does not have."""

UNKNOWN_NAME = "look for its replacement in the Pallas changelog"

# Cases

_NO_RULE = "`{name}` has no lowering for the TPU's core"
_BLOCKS = "{operand}, {array}, is divided into blocks of {block}"
_SMALLER = "use smaller blocks, less scratch or a narrower dtype"
_VMEM = "the kernel needs at least {used} of VMEM, and may use {limits}: {parts}"

_RECORDER = "on a TPU, the log recorder formats prints"
_FORMAT = "the format string {fmt!r}"
_SCALAR = "a scalar of type {dtype} is printed with a `{{}}`"
_ALLOWED = _RECORDER + ": in this jax, `{{}}` takes only {allowed}"

_PRINTS = [
    Case(
        "it is ordered",
        "a kernel prints only in the order of its grid points",
        "remove `ordered=True`",
        has("ordered"),
    ),
    Case(
        _FORMAT + " has the lone surrogate {surrogate!r}",
        "it is stored in the compiled program as UTF-8, which cannot encode lone surrogates",
        "remove it",
        has("surrogate"),
    ),
    Case(
        "{keyword!r} is a keyword argument",
        _RECORDER + " and takes only positional arguments",
        "write `{{}}` for `{{{keyword}}}`, and pass the value by position",
        has("keyword"),
    ),
    Case(
        "{static} is not an array",
        _RECORDER + " and takes only numbers",
        "put it into the format string, if it is known while the kernel is traced",
        has("static"),
    ),
    Case(
        "a ref is printed instead of its value",
        _RECORDER + " and takes only values",
        "load it or one of its elements first, as in `x_ref[...]`",
        has("is_ref"),
    ),
    Case(
        "{shapes} are printed together",
        _RECORDER + ": any number of scalars, or a single array",
        "print each array in a separate `pl.debug_print`",
        has("shapes"),
    ),
    Case(
        "an array is printed with the format string {fmt!r}, which does not end in its only `{{}}`",
        _RECORDER + ": an array must follow the text",
        "end the format string in `{{}}`, without `{{{{` or `}}}}` before it",
        has("is_array"),
    ),
    Case(
        "an array of booleans is printed: {bools}",
        "libtpu rejects boolean buffers or aborts",
        "print `x.astype(jnp.int32)`",
        has("bools"),
    ),
    Case(
        _FORMAT + " is invalid: {error}",
        "while tracing a kernel, jax checks only the first field",
        "remove the brace, or double it after the last `{{}}`",
        has("error"),
    ),
    Case(
        _FORMAT + " has the format spec `{spec}`",
        _RECORDER + " and supports only `{{}}`",
        "write `{{}}`; to print fewer digits, round the number in the kernel",
        has("spec"),
    ),
    Case(
        _FORMAT + " has the field `{{{field}}}`",
        _RECORDER + " and takes only positional arguments",
        "write `{{}}`, and pass the values in that order",
        has("field"),
    ),
    Case(
        _FORMAT + " expects {expected}, not {given}",
        _RECORDER + ": each `{{}}` takes one argument",
        "write as many `{{}}` as there are values",
        has("expected"),
    ),
    Case(
        _FORMAT + " has a `{{{{` or `}}}}` before a `{{}}`",
        "jax counts the brace as a placeholder, so the values after it go to the wrong ones",
        "put braces after the last `{{}}`, or use parentheses",
        has("has_braces"),
    ),
    Case(
        _SCALAR,
        _ALLOWED,
        "print `x.astype(jnp.int32)`",
        lambda f: f.allowed and f.dtype.startswith(("int", "uint", "bool")),
    ),
    Case(
        _SCALAR,
        _ALLOWED,
        "print `x.astype(jnp.float32)`{is_last:% after the text, without a `{{}}` for it}",
        has("allowed"),
    ),
    Case(
        "a scalar of type {dtype} is printed without a `{{}}` for it, after {fmt!r}",
        "libtpu {libtpu} aborts at that: without a `{{}}` it takes only float32",
        "print `x.astype(jnp.float32)`{is_int32:%, or write a `{{}}` for it, and no other brace}",
    ),
]


def _raised(advice: str, when: Test | None = None) -> Case:
    return Case("{headline}", None, advice, when)


_UNKNOWN = [_raised(explain.UNKNOWN_ADVICE)]

CASES: Mapping[Fault, Sequence[Case]] = {
    Fault.INVALID_OPERATION: [
        Case(
            "{ref} is indexed by a {index_dtype}",
            "the index comes from a division with / or from a float operand: interpret mode "
            "truncates it, and the compiler rejects it or crashes",
            "divide with //, or cast the index with .astype(jnp.int32)",
            has("index_dtype"),
        ),
        Case(
            "an iota of {iota} is created, but the core has only integer iotas",
            "`tpu.iota` takes only integers",
            "use lax.broadcasted_iota(jnp.int32, ...), and cast it with astype",
        ),
    ],
    Fault.DIRECT_HBM_ACCESS: [Case("{ref}, {shape}, is loaded or stored without a copy")],
    Fault.SCALAR_STORE_TO_VMEM: [Case("a scalar is stored to {ref}, {shape} in VMEM")],
    Fault.UNSUPPORTED_CHECK: [
        Case("checkify.check is called in the kernel, but jax cannot run it there")
    ],
    Fault.UNSUPPORTED_PRIMITIVE: [
        Case(
            "a lax.scan stacks outputs, one entry per iteration",
            "a loop on the core can carry values, but cannot stack outputs",
            "use lax.fori_loop, and store to a ref at each iteration",
            has("stacked"),
        ),
        Case(_NO_RULE, None, "{instead}", has("instead")),
        Case(_NO_RULE),
    ],
    Fault.UNSUPPORTED_GATHER: [Case("{values} is gathered with indices {indices}")],
    Fault.UNSUPPORTED_CAST: [
        Case(
            "{old} is cast to {new}",
            "TPUs have no cast between the two",
            "keep bfloat16, or cast through float32 outside the kernel",
        )
    ],
    Fault.UNSUPPORTED_DTYPE: [
        Case(
            "{complex} holds complex numbers",
            "a TPU vector holds only real numbers",
            "keep the real and imaginary parts in two arrays; compute FFTs before the call",
            has("complex"),
        ),
        Case(
            "matrices of {unsigned} are multiplied",
            "the matrix unit would treat unsigned numbers as signed",
            "cast to a signed or float dtype that holds all values",
            has("unsigned"),
        ),
        Case(
            "matrices of {narrow} are multiplied, which {targets} cannot do",
            "the matrix unit there multiplies only bfloat16 and float32",
            "cast to bfloat16, in which products of 8-bit integers are exact",
            has("narrow"),
        ),
        Case(
            "{ref} is {shape}, but a TPU cannot load float16",
            "TPUs have bfloat16, but no float16",
            "cast to bfloat16 or float32 before the call",
        ),
    ],
    Fault.UNSUPPORTED_SHAPE_CAST: [
        Case(
            "{old}, which lies along the lanes, becomes {new}",
            "the compiler cannot move bools from lanes to sublanes: libtpu 0.0.42 rejects it, and "
            "0.0.50 crashes",
            "turn the numbers into a column before comparing them, or pass them as a column",
        )
    ],
    Fault.UNPROVEN_ALIGNMENT: [
        Case(
            "{columns:% }columns of {ref} are accessed at an offset that must be a multiple of "
            "128, and is not known to be{multiple:, only to be a multiple of %}",
            "a vector must begin at a tile boundary (every 128 lanes), and the compiler must be "
            "able to prove it",
            "if it is a multiple, declare it: pl.multiple_of(start, 128); otherwise load whole "
            "tiles and use pltpu.roll",
        )
    ],
    Fault.UNALIGNED_DMA: [
        Case(
            "a copy takes {columns} of {of} columns of {operand}, {shape}, but copies move whole "
            "rows of 128 lanes",
            "arrays are laid out in tiles of 128 lanes",
            "copy whole tiles into a larger buffer, and slice it there",
        )
    ],
    Fault.X64_INDEX_MAP: [
        Case(
            "no index map is given for {made}, and what jax creates returns int64; the TPU's index "
            "maps return int32",
            "jax fills it with Python zeros, which are int64 under jax_enable_x64",
            "pass an index map that returns jnp.int32(0) for each dimension, or call the kernel "
            "without x64",
            has("made"),
        ),
        Case(
            "the index map of {operand} returns an int64 for dimension {dim}; the TPU's index maps "
            "return int32"
        ),
    ],
    Fault.ZERO_SIZE_OPERAND: [Case("{operand} is {shape}, which is empty")],
    Fault.BLOCK_SHAPE_TILING: [
        Case(
            _BLOCKS + " in {space}",
            "an operand that stays in HBM is not divided into blocks: the kernel gets all of it",
            "remove the block shape and the index map, and copy the parts by DMA",
            has("space"),
        ),
        Case(
            _BLOCKS + ": {size:d} is neither a multiple of {unit} nor the whole dimension",
            "a tile has 8 rows of 128 lanes",
            "use {best}{is_rows:%; or reshape the array so that its blocks span the last two "
            "dimensions}",
            has("unit"),
        ),
        Case(
            _BLOCKS + ": {elements:d} is neither the whole dimension, nor a multiple of 1024, nor "
            "a power of two of at least {least:d}",
            "a vector of {dtype} is laid out in tiles of {least:d}",
            "use {best:d} elements, or reshape the array to two dimensions",
            has("elements"),
        ),
        Case(
            _BLOCKS + ": {narrow} rows is not a multiple of {tile}",
            "a tile of {dtype} has {tile} rows, and libtpu {libtpu} requires whole tiles",
            "use {best} rows, or upgrade libtpu to {since}",
            has("narrow"),
        ),
        Case(
            _BLOCKS + ", which have no dimension",
            "a block needs at least one dimension",
            "reshape it to (1, 1)",
        ),
    ],
    Fault.VMEM_OVERFLOW: [
        Case(
            _VMEM,
            "the whole VMEM of a chip is {capacities}: vmem_limit_bytes cannot make it larger",
            _SMALLER,
            has("capacities"),
        ),
        Case(
            _VMEM,
            "VMEM holds each block once per buffer, plus the scratch",
            _SMALLER + "{room:; or set vmem_limit_bytes to at most %}",
        ),
    ],
    Fault.SMEM_OVERFLOW: [
        Case("the kernel needs at least {used} of SMEM, and has {limits}: {parts}")
    ],
    Fault.REMOVED_NAME: [Case("{messages}", None, "{instead}")],
    Fault.PRINT_NOT_SUPPORTED: _PRINTS,
    Fault.INTERPRET_ERROR: [
        Case(
            "stopped after {seconds:,.0f} s on the kernel machine{progress:, at grid point %}; "
            "{calls} steps, {pace:,.0f} per second"
        )
    ],
    Fault.TRACE_ERROR: [
        _raised("correct this line: Python {python} cannot compile the file", has("is_syntax")),
        _raised(
            "install the package that the message names, or correct the import", has("is_import")
        ),
        _raised(
            "use another name on this line: the installed {package} has no {name} there",
            has("package"),
        ),
        _raised(
            "fix what the message names: jax rejected the call while tracing it",
            is_("raiser", "jax"),
        ),
        _raised(
            "fix what the message names: {raiser} raised the exception, not jax{chip}",
            has("raiser"),
        ),
        _raised(
            "pass what this line requires, or fix its condition: it raises the exception itself"
            "{chip}",
            has("is_condition"),
        ),
        _raised("fix this line: it raises the exception itself{chip}"),
    ],
    Fault.LOWERING_ERROR: _UNKNOWN,
    Fault.COMPILE_ERROR: _UNKNOWN,
    Fault.COMPILER_ABORT: _UNKNOWN,
}
