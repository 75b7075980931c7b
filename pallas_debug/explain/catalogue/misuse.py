"""Invalid Pallas calls, which jax rejects during tracing on any machine."""

from __future__ import annotations

from pallas_debug.explain.catalogue.record import JAX, PALLAS, entry

ENTRIES = (
    entry(
        "captured-constant",
        "The kernel function in the pallas_call … captures constants",
        "must not capture constants",
        title="a kernel or index map uses an array that is not among its operands",
        cause="the function closes over an array from outside, or one that jnp created from a "
        "literal",
        advice="pass the array as an operand (for index maps, as scalar prefetch), or create it "
        "in the kernel with jnp.full or broadcasted_iota; use Python numbers for scalars",
        kinds=("CapturedConstant",),
        links=(JAX + "21557",),
    ),
    entry(
        "traced-condition",
        "Attempted boolean conversion of traced array",
        title="Python's `if` or `while` on a value that is known only when the kernel runs",
        cause="a kernel is traced once for all values, but `if`, `while`, `and`, `or`, `not`, "
        "`assert` and bool() need a concrete value while it is traced",
        advice="put conditional code in a function decorated with @pl.when(condition); choose "
        "between values with jnp.where or jax.lax.cond, and loop with jax.lax.while_loop",
        links=(PALLAS + "quickstart.html",),
        ambiguous=True,
    ),
    entry(
        "traced-slice",
        "the bounds of a slice are traced",
        title="a slice has bounds that are known only when the kernel runs",
        cause="Python's start:stop needs numbers while the kernel is traced, and the slice's size "
        "would not be fixed",
        advice="write ref[pl.ds(start, size)]: start may be traced, size must be a number",
        links=(PALLAS + "quickstart.html",),
        ambiguous=True,
    ),
    entry(
        "traced-shape",
        "Shapes must be 1D sequences of concrete values of integer type",
        title="the shape of an array is known only when the kernel runs",
        cause="a kernel is traced once for all values, and its arrays have fixed shapes",
        advice="give the array its maximum size, and mask the rest with jnp.where and "
        "jax.lax.broadcasted_iota",
        ambiguous=True,
    ),
    entry(
        "numpy-function",
        "numpy.ndarray conversion method __array__() was called on traced array",
        title="a NumPy function is called on a value that is known only when the kernel runs",
        cause="NumPy computes with numbers, but a kernel is traced once for all values",
        advice="use the equivalent function of jax.numpy or jax.lax",
        ambiguous=True,
    ),
    entry(
        "traced-format",
        "unsupported format string passed to DynamicJaxprTracer.__format__",
        title="a value that is known only when the kernel runs is formatted as text",
        cause="a kernel is traced once for all values, so Python's print has no number to show",
        advice='write pl.debug_print("{}", value)',
    ),
    entry(
        "traced-number",
        "__index__() method was called on traced array",
        "Abstract tracer value encountered where concrete value is expected",
        title="Python needs a number that is known only when the kernel runs",
        cause="a kernel is traced once for all values, but int(), float(), range(), a shape, and "
        "the index of a list or tuple need a number while it is traced",
        advice="loop with jax.lax.fori_loop, which takes traced bounds; keep shapes static, and "
        "index a reference or an array rather than a list",
        ambiguous=True,
    ),
    entry(
        "float-as-index",
        "Only integer scalar arrays can be converted to a scalar index",
        title="an index or a bound of range() is a float or a whole array",
        cause="Python needs an integer there, and a value of the kernel is known only when it runs",
        advice="loop with jax.lax.fori_loop, and index a reference rather than a list; the bounds "
        "and the index must be integers: divide with //, or cast with .astype(jnp.int32)",
        ambiguous=True,
    ),
    entry(
        "boolean-index",
        "Array boolean indices must be concrete",
        title="an array is indexed by a mask",
        cause="how many elements the mask selects is known only when the kernel runs, but arrays "
        "in a kernel have fixed shapes",
        advice="keep the shape, and replace the other elements with one that does not matter: "
        "jnp.where(mask, x, 0) before a sum, -jnp.inf before a maximum",
        ambiguous=True,
    ),
    entry(
        "array-assignment",
        "JAX arrays are immutable and do not support in-place item assignment",
        title="an assignment treats a value as if it were a reference",
        cause="loads such as x_ref[...] return arrays, and loops carry arrays; only references "
        "can be stored to",
        advice="store to the reference itself, x_ref[index] = value; to keep a value between the "
        "iterations of a loop, return it, or hold it in scratch memory",
        ambiguous=True,
    ),
    entry(
        "kernel-with-arrays",
        " is a kernel, and was called with arrays",
        title="a kernel function is called directly",
        cause="its parameters are references only while pl.pallas_call or pl.kernel calls it",
        advice="name or call the function that passes this kernel to pl.pallas_call",
        links=(PALLAS + "quickstart.html",),
    ),
    entry(
        "reference-as-value",
        "'AbstractRef' object has no attribute '",
        "requires ndarray or scalar arguments, got <class '…DynamicJaxprTracer'>",
        "got a Ref of type…, but a Ref can't be passed where an array is expected",
        "TransformedRefs cannot be abstractified",
        "Cannot store a Ref into another Ref",
        title="a reference is used as if it were the array that it refers to",
        cause="the kernel gets references to memory, which support neither arithmetic nor array "
        "methods",
        advice="load the array first: x_ref[...], also before .T or another method of arrays",
        links=(PALLAS + "quickstart.html",),
    ),
    entry(
        "iteration",
        "Value of type <class '…DynamicJaxprTracer'> is not iterable",
        title="Python iterates over a reference",
        cause="a kernel is traced once, and a reference is not a sequence of rows",
        advice="loop over the index, jax.lax.fori_loop(0, ref.shape[0], body, init), and read "
        "ref[i] in the body",
    ),
    entry(
        "mask-index",
        "a reference of shape…is indexed by bool[",
        title="a reference is indexed by a mask",
        cause="references are indexed by numbers and slices: the number of elements that a mask "
        "selects is unknown while the kernel is traced",
        advice="store jnp.where(mask, value, ref[...]), or pass mask= to pltpu.store",
    ),
    entry(
        "slice-out-of-bounds",
        "Out of bound slice: start=",
        title="a slice ends outside its reference",
        cause="start + (size - 1) * stride is not less than the size of the dimension",
        advice="slice within the block that the kernel gets, which has shape ref.shape, not "
        "within the array",
    ),
    entry(
        "loop-carry",
        "carry input and carry output must have equal types, but they differ",
        title="a loop body returns other types than it takes",
        cause="the next iteration takes what this one returns, so shapes and dtypes must match",
        advice="cast or reshape what the body returns, or start with a value of that type",
    ),
    entry(
        "loop-condition",
        "cond_fun must return a boolean scalar",
        title="the condition of a loop is not a single bool",
        cause="the condition must return one bool, but a comparison of arrays returns an array",
        advice="reduce it with jnp.any or jnp.all, or compare a scalar",
    ),
    entry(
        "branch-results",
        "cond branch outputs must have the same pytree structure, but they differ",
        title="the branches of a condition return different things",
        cause="all branches must return the same structure, and a function decorated with "
        "@pl.when must return nothing",
        advice="under @pl.when, store to a reference and return nothing; with jax.lax.cond, "
        "return the same structure from both branches",
    ),
    entry(
        "leaked-value",
        "the kernel uses…, which a function within it assigned",
        title="a value of a branch or loop is used outside it",
        cause="a function under @pl.when, or a loop's body, assigns a variable of the kernel, but "
        "its value exists only inside that function",
        advice="store the value in scratch memory or an output, or select it with jnp.where or "
        "jax.lax.cond; return it from a loop's body to carry it",
    ),
    entry(
        "store-dtype",
        "Invalid dtype for `swap`",
        "Invalid dtype for `addupdate`",
        title="a value of another dtype is stored",
        cause="stores do not cast the value to the dtype of the reference",
        advice="store value.astype(ref.dtype), or give the buffer the value's dtype if the cast "
        "would lose precision, as in a sum",
        kinds=("StoreDtype",),
    ),
    entry(
        "store-shape",
        "Invalid shape for `swap`",
        "Invalid shape for `addupdate`",
        title="a value of another shape is stored",
        cause="a store needs a value of exactly the shape that it stores to: it does not broadcast",
        advice="broadcast the value to ref.shape, or store to a slice of its shape; after a "
        "reduction, keep the dimension with keepdims=True",
        kinds=("StoreShape",),
    ),
    entry(
        "kernel-returns-value",
        "should return None. It returns a PyTree",
        title="the kernel function returns a value",
        cause="a kernel writes its results to its output references",
        advice="assign to the reference, out_ref[...] = value, and return nothing",
        kinds=("KernelReturnsValue",),
    ),
    entry(
        "index-map-arity",
        "Index map function…must return…values to match",
        title="an index map returns too few or too many block indices",
        cause="an index map must return one index for each dimension of the block",
        advice="return one value for each entry of the block shape, in the same order",
        kinds=("IndexMapArity",),
        links=(PALLAS + "grid_blockspec.html",),
    ),
    entry(
        "index-map-arguments",
        "<lambda>() takes … positional argument",
        "<lambda>() missing … required positional argument",
        "() takes … positional argument…, while jax called the index map",
        "() missing … required … argument…, while jax called the index map",
        kind="IndexMapArity",
        title="an index map takes too few or too many arguments",
        cause="an index map is called with one index for each dimension of the grid, followed by "
        "the scalar-prefetch operands",
        advice="give the index map one parameter for each dimension of the grid and each "
        "scalar-prefetch operand, or *_ for unused ones",
        links=(PALLAS + "grid_blockspec.html",),
        ambiguous=True,
    ),
    entry(
        "kernel-parameters",
        "() takes … positional argument…, while jax called the kernel",
        "() missing … required … argument…, while jax called the kernel",
        title="the kernel function has too few or too many parameters",
        cause="the kernel is called with one reference for each operand, each output and each "
        "scratch buffer, in this order; scalar-prefetch operands come first",
        advice="give it one parameter for each of them, or *refs; bind other arguments with "
        "functools.partial",
        links=(PALLAS + "quickstart.html",),
    ),
    entry(
        "specs-mismatch",
        "Pytree for `…` and `…` do not match",
        title="the block specs do not match the structure of the operands or outputs",
        cause="in_specs must have one BlockSpec for each operand except scalar prefetch, and "
        "out_specs one for each output, with the same nesting",
        advice="pass as many specs as there are operands or outputs; a single one needs no list",
        links=(PALLAS + "grid_blockspec.html",),
    ),
    entry(
        "block-shape-type",
        "the shape of a block is a function",
        title="the shape of a block is a function",
        cause="pl.BlockSpec takes the shape first, then the index map",
        advice="write pl.BlockSpec((8, 128), lambda i: (i, 0))",
        links=(PALLAS + "grid_blockspec.html",),
    ),
    entry(
        "roll-shift",
        "shift must be non-negative",
        title="a roll has a negative shift",
        cause="pltpu.roll(x, shift, axis) moves elements to higher indices only",
        advice="to move them to lower indices by n, roll by x.shape[axis] - n",
    ),
    entry(
        "grid-type",
        "Grid must be a tuple of integers",
        title="the grid has a size that is not an integer",
        cause="each size must be an integer, but a division with / returns a float",
        advice="divide with //, or with pl.cdiv if the last block is partial",
    ),
    entry(
        "semaphore-type",
        "requires a DMA semaphore, but got a regular semaphore",
        "semaphores of the following types: ",
        title="a semaphore of the wrong type",
        cause="a copy signals a DMA semaphore; pl.semaphore_signal and pl.semaphore_wait use "
        "regular semaphores",
        advice="allocate the semaphore of a copy as pltpu.SemaphoreType.DMA, and others as "
        "pltpu.SemaphoreType.REGULAR",
    ),
    entry(
        "semaphore-array",
        "on a non-()-shaped semaphore",
        title="an array of semaphores is used as if it were a single one",
        cause="pltpu.SemaphoreType.DMA((2,)) allocates an array of semaphores, and each copy, "
        "signal and wait uses one of them",
        advice="select one: sem.at[0]; or allocate a single one, pltpu.SemaphoreType.DMA",
    ),
    entry(
        "semaphore-outside-jit",
        "'AbstractSemaphoreTyRules' has no attribute",
        title="a semaphore is a result of a program",
        cause="a semaphore that a kernel returns exists only within the program that calls it, and "
        "outside of jax.jit each kernel is a program of its own",
        advice="call the kernels that share the semaphore in one function under jax.jit, which "
        "does not return it",
    ),
    entry(
        "scratch-type",
        "object has no attribute 'get_ref_aval'",
        title="scratch_shapes has an entry that is not a memory",
        cause="each entry must specify a memory space, a shape and a dtype",
        advice="write pltpu.VMEM((8, 128), jnp.float32), pltpu.SMEM or a pltpu.SemaphoreType",
    ),
    entry(
        "out-shape-type",
        "Invalid out_shape type",
        title="out_shape is not a shape with a dtype",
        cause="out_shape needs a shape and a dtype; a tuple of numbers has no dtype",
        advice="write jax.ShapeDtypeStruct((8, 128), jnp.float32); a list or tuple of them for "
        "several outputs",
    ),
    entry(
        "slice-size",
        "DShapedArray(shape=(",
        title="a slice has a size that is known only when the kernel runs",
        cause="loads and stores have fixed shapes: in pl.ds(start, size), start may be traced but "
        "size may not; jax reports this as a failed assertion",
        advice="load a fixed size and mask the rest with jnp.where and jax.lax.broadcasted_iota; "
        "or loop over rows with jax.lax.fori_loop; only copies (pltpu.make_async_copy) "
        "accept such a size",
    ),
    entry(
        "index-map-type",
        "must return integer scalars. Output[",
        title="an index map returns something that is not an integer",
        cause="a block index comes from a division with / or is an array",
        advice="divide with //; index a scalar prefetch operand down to one number",
    ),
    entry(
        "block-rank",
        "must have the same number of dimensions as the array shape",
        title="a block has more or fewer dimensions than its array",
        cause="the block shape must have one entry for each dimension, None for those that the "
        "kernel should not see",
        advice="add None for each dimension along which a grid point takes a single index",
        kinds=("BlockRank",),
        links=(PALLAS + "grid_blockspec.html",),
    ),
    entry(
        "program-id-without-grid",
        "is out of bounds for grid (",
        title="pl.program_id asks for an axis that the grid does not have",
        cause="the grid has fewer dimensions, or there is none",
        advice="pass grid=…, count axes from 0, or use 0 if there is only one step",
    ),
    entry(
        "dimension-semantics-length",
        "Length of grid does not match length of dimension semantics",
        title="dimension_semantics and the grid differ in length",
        cause="dimension_semantics must have one entry for each dimension of the grid",
        advice='pass "parallel" or "arbitrary" for each dimension of the grid',
    ),
    entry(
        "alias-range",
        "input_output_aliases contains the mapping",
        "In/out memory space conflict for alias",
        title="input_output_aliases names operands that cannot share a buffer",
        cause="the positions count all inputs from 0, including scalar prefetch; both sides must "
        "have the same shape, dtype and memory space",
        advice="recount the operands, and compare their shapes and dtypes",
        links=(JAX + "24023",),
    ),
    entry(
        "program-id-under-grad",
        "grid_context is not None` in axis_frame, while jax differentiates the kernel",
        title="jax differentiates a kernel that uses pl.program_id",
        cause="jax differentiates the kernel's body outside its grid, where pl.program_id and "
        "pl.num_programs have no value",
        advice="wrap the call in jax.custom_vjp and write the backward kernel; or take the "
        "position from an operand instead of pl.program_id",
        links=(JAX + "22197", JAX + "37521"),
    ),
    entry(
        "program-id-outside",
        "grid_context is not None` in axis_frame, outside of a kernel",
        title="pl.program_id is called where there is no grid",
        cause="pl.program_id and pl.num_programs have a value only while a kernel is traced",
        advice="call it in the kernel function, and pass the number on",
    ),
    entry(
        "reverse-mode",
        "JVP with aliasing not supported",
        "pallas_call with a mesh does not support JVP",
        "Linearization failed to produce known values for all output primals",
        title="a kernel is differentiated",
        cause="jax can differentiate only few kernels by itself: none with aliases or scalar "
        "prefetch, and none in reverse mode; for some, it raises an AssertionError without "
        "a message",
        advice="wrap the call in jax.custom_vjp and write the backward kernel",
        links=(JAX + "37267", JAX + "22197"),
    ),
    entry(
        "jax-assertion",
        "while jax traced the kernel",
        title="an internal assertion of jax failed while it traced a kernel",
        cause="the assertion is in jax, not in the kernel: this jax release does not expect the "
        "arguments that the kernel passes to that function, or has a bug",
        advice="run the kernel with the jax release that it was written for, or call the function "
        "with fewer options; report the assertion to jax together with the kernel",
    ),
    entry(
        "automatic-partitioning",
        "Mosaic kernels cannot be automatically partitioned",
        "pallas_call requires all mesh axes to be Manual",
        "Cannot use communication in pallas_call without shard_map",
        title="a kernel runs on several devices without shard_map",
        cause="XLA can shard only operations that it understands, and a kernel is opaque to it",
        advice="call it inside jax.shard_map over all axes of the mesh, with specs for its "
        "operands",
    ),
    entry(
        "varying-axes",
        "When `check_vma=True` on `jax.shard_map`",
        title="shard_map does not know how the kernel's outputs vary over the mesh",
        cause="jax cannot determine from a kernel which mesh axes its outputs depend on",
        advice="specify it in out_shape (jax.ShapeDtypeStruct(…, manual_axis_type=…)), or pass "
        "check_vma=False to shard_map",
        versions="jax 0.10 and later; vma= before",
    ),
    entry(
        "collective-id-missing",
        "collective_id has to be specified when using a custom barrier",
        title="a kernel uses the barrier semaphore without a collective_id",
        cause="pltpu.get_barrier_semaphore returns a semaphore that all devices share, and "
        "collective_id distinguishes it from those of other kernels",
        advice="pass compiler_params=pltpu.CompilerParams(collective_id=0), with a different "
        "number for each kernel that may run at the same time",
        versions="jax 0.10.2 and 0.12",
    ),
    entry(
        "collective-id-unused",
        "collective_id has to be unspecified or None when not using a custom",
        title="a kernel has a collective_id but uses no barrier semaphore",
        cause="collective_id is the number of the barrier semaphore, which the kernel never "
        "requests",
        advice="before the first remote copy, signal the barrier semaphore "
        "(pltpu.get_barrier_semaphore) of each neighbour and wait for their signals; if "
        "the kernel does not communicate with other devices, remove collective_id",
        versions="jax 0.10.2 and 0.12",
    ),
    entry(
        "seed-numbers",
        "Setting seed with more than 2 values is not supported",
        title="pltpu.prng_seed is called with more than two numbers",
        cause="the TPU's generator takes one or two 32-bit numbers",
        advice="combine several program ids into one number: pl.program_id(0) * "
        "pl.num_programs(1) + pl.program_id(1)",
        versions="jax 0.10.2 and 0.12",
    ),
    entry(
        "compiler-params-type",
        "vmem_limit_bytes must be an int",
        title="vmem_limit_bytes is not an integer",
        cause="a computed limit is a float or a NumPy value",
        advice="pass int(limit)",
    ),
)
