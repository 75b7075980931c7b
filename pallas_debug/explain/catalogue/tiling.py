"""Blocks, slices and copies that do not fit the TPU's memory tiles."""

from __future__ import annotations

from pallas_debug.explain.catalogue.record import JAX, PALLAS, entry

ENTRIES = (
    entry(
        "block-shape",
        "requires that the last two dimensions of your block shape are divisible by 8 and 128",
        title="a block's last two dimensions do not fit the 8 x 128 tile",
        cause="memory is laid out in tiles of 8 rows and 128 lanes, and a block may not split a "
        "tile unless it spans the whole dimension",
        advice="make the last dimension of the block a multiple of 128 and the second-to-last a "
        "multiple of 8, or use the whole dimension; for single rows, add a dimension: (n, "
        "1, d) with blocks (1, 1, d), or None for the leading one",
        kinds=("BlockShapeTiling",),
        links=(PALLAS + "grid_blockspec.html", JAX + "25379"),
    ),
    entry(
        "block-shape-1d",
        "requires that rank 1 block shapes",
        kind="BlockShapeTiling",
        title="a block of a vector does not fit the tile of a vector",
        cause="vectors are laid out in tiles of 1024 elements; smaller blocks must be a power of "
        "two of at least 128",
        advice="reshape the vector to (n // 128, 128) and divide that into blocks; or use a block "
        "of 1024 elements, or the whole vector",
        links=(PALLAS + "grid_blockspec.html", JAX + "25379"),
    ),
    entry(
        "window-tiling",
        "is not divisible by tiling evenly nor matches the full shape",
        code="E2002",
        name="CompileTimeMosaicMisalignedBlockAndTiling",
        kind="BlockShapeTiling",
        title="a block splits a tile of its dtype",
        cause="narrow dtypes have taller tiles: 16 rows for 16 bits, 32 rows for 8 bits. jax "
        "checks only for 8 rows",
        advice="give bfloat16 blocks a multiple of 16 rows, int8 and float8 blocks a multiple of "
        "32, or use the whole dimension",
        versions="libtpu 0.0.42 rejects int8 and float8 blocks of 8 rows, 0.0.50 compiles them",
    ),
    entry(
        "unproven-alignment",
        "cannot statically prove that index in dimension",
        code="E2003",
        name="CompileTimeMosaicUnprovenMemoryAccessAlignment",
        title="a load or store starts at an index that is not known to be aligned",
        cause="the start along a tiled dimension is computed at run time, and the compiler treats "
        "it as misaligned unless it can prove otherwise",
        advice="if it is aligned, declare it with pl.multiple_of(index, n); if not, load the "
        "aligned tile and shift it with pltpu.roll. A false pl.multiple_of silently reads "
        "the wrong tile: run it under pallas-debug's checks",
        kinds=("UnprovenAlignment",),
        links=(JAX + "36770",),
    ),
    entry(
        "dma-alignment",
        "The contiguous inner slice in the DMA transfer must be divisible by",
        "Source and target leading tiles have different trailing dimensions",
        "Slice sizes along tiled dimensions must be aligned to tiles",
        "Slice shape along dimension…must be aligned to tiling",
        title="a copy takes part of a tile",
        cause="a DMA moves whole tiles: 128 lanes along the last dimension, 8 rows along the one "
        "before (16 for 16-bit dtypes, 32 for 8-bit ones)",
        advice="copy the aligned slice around the one that you need and slice it in VMEM; or pad "
        "the array so that the slice consists of whole tiles",
        versions="reworded in libtpu 0.0.50",
        kinds=("UnalignedDma",),
        links=(JAX + "29520",),
    ),
    entry(
        "matmul-shape",
        "Matmul operand…must have a shape divisible by",
        "unsupported operand shapes or layouts",
        title="the operands of a matrix product are too small or split a tile",
        cause="older compilers multiply only whole tiles",
        advice="contract over at least 128 elements, with a multiple of 8 rows (16 for bfloat16); "
        "pad with zeros",
        versions="libtpu of 2023 and 2024: 0.0.2 reports it, 0.0.6 pads",
        links=(JAX + "18388", JAX + "24486"),
    ),
    entry(
        "scalar-block",
        "lowering currently supports only blocks of rank >= 1",
        kind="BlockShapeTiling",
        title="an operand is a scalar, which cannot have a block",
        cause="a scalar has no dimension to lay out in VMEM",
        advice="reshape it to (1, 1), or put it into SMEM as a vector of one element with "
        "pl.BlockSpec(memory_space=pltpu.SMEM)",
    ),
    entry(
        "any-window",
        "supports in memory space ANY only blocks having the same block shape",
        "in HBM but does not have trivial BlockSpec",
        title="an operand that stays in HBM has a block",
        cause="a reference with memory_space=pl.ANY is the whole array: Pallas does not copy "
        "blocks of it",
        advice="remove block_shape and index_map and copy slices with pltpu.make_async_copy; or "
        "remove memory_space and let Pallas copy the blocks",
    ),
    entry(
        "window-without-grid",
        "Non-trivial windowing is not supported for grid-free pallas_call",
        title="a kernel without a grid has a block",
        cause="without a grid there is a single step, which gets each operand as a whole",
        advice="pass grid=(1,), or remove the block shape",
    ),
    entry(
        "element-padding",
        "Low padding not supported yet",
        title="a block of pl.Element has padding before the array",
        cause="pl.Element(size, (low, high)) requests padding at both ends, but the compiler "
        "supports it only after the array; interpret mode supports both",
        advice="pad the array before the call (jnp.pad) and write pl.Element(size), or "
        "pl.Element(size, (0, high))",
        versions="libtpu 0.0.42 and 0.0.50",
    ),
    entry(
        "element-index",
        "Couldn't prove that tiling…divides index returned by transform_indices",
        title="the offset from an index map of pl.Element is not known to be a multiple of the "
        "tile",
        cause="with pl.Element, the index map returns the offset of the first element, not a "
        "block index, and a block must begin at a tile boundary",
        advice="return a product, as in `lambda i: (i * 16, 0)`; or copy the slice into a scratch "
        "buffer in the kernel",
    ),
    entry(
        "buffer-count",
        "Only single (1) and double (2) buffering are supported",
        "Lookahead is not supported for XLA pipeline emitter lowering",
        "Separate input/output buffer counts are only supported by emit_pipeline",
        title="a deeper pipeline is requested than a kernel supports",
        cause="the pipeline around a kernel has one or two buffers per block and fetches only the "
        "block of the next grid point",
        advice="use pl.Buffered(1) or remove pipeline_mode; for deeper pipelines, use "
        "pltpu.emit_pipeline or write the copies yourself",
    ),
    entry(
        "zero-size",
        "vector types must have positive constant sizes but got",
        title="an array has no elements",
        cause="a dimension of an operand, or of a value in the kernel, is 0, and a TPU has no "
        "empty vectors",
        advice="if an operand is empty, return jnp.zeros(shape) instead of calling the kernel; "
        "otherwise change the line, which takes an empty slice, as jax.lax.associative_scan does",
        kinds=("ZeroSizeOperand",),
        ambiguous=True,
    ),
    entry(
        "boundary-layout",
        "Failed to verify layout for Mosaic kernel operand",
        "XLA layout does not match MLIR layout",
        title="XLA uses a different layout for an operand than the kernel expects",
        cause="usually an operand of size 0, in recent versions one in SMEM; or versions of jax "
        "and libtpu that do not match",
        advice="do not pass empty arrays; install the libtpu that this jax pins "
        "(pip install 'jax[tpu]')",
    ),
)
