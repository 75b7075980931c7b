"""Unparser for refs: reads, writes and indices; DMAs and semaphores."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax

from pallas_debug.bridge import jaxcompat
from pallas_debug.bridge.jaxcompat import indexing, pallas_primitives, state_types
from pallas_debug.bridge.unparse import values
from pallas_debug.bridge.unparse.page import Writer


def get(block: Writer, eqn: Any) -> None:
    ref, *leaves = eqn.invars
    transforms = jax.tree.unflatten(eqn.params["tree"], leaves)
    block.assign(eqn.outvars, _access(block, ref, transforms))


def swap(block: Writer, eqn: Any) -> None:
    ref, value, *leaves = eqn.invars
    transforms = jax.tree.unflatten(eqn.params["tree"], leaves)
    if not all(map(block.is_dropped, eqn.outvars)):
        raise values.CannotUnparse("a swap, whose old values it uses")
    block.line(f"{_access(block, ref, transforms)} = {block.read(value)}")


def dma_start(block: Writer, eqn: Any) -> None:
    source, destination, arrived, sent, device = eqn.params["tree"].unflatten(eqn.invars)
    copy = _copy(block, eqn, source, destination, arrived, sent, device)
    options = {name: eqn.params[name] for name in ("priority", "add") if eqn.params.get(name)}
    block.line(f"{copy}.start({values.keywords(options.items())})")


def dma_wait(block: Writer, eqn: Any) -> None:
    source, destination, arrived, sent, device = eqn.params["tree"].unflatten(eqn.invars)
    if sent is None:
        block.line(f"{_copy(block, eqn, source, destination, arrived, None, None)}.wait()")
    elif jaxcompat.is_wait_of_sender(eqn.params):  # the two sides are swapped
        copy = _copy(block, eqn, destination, source, sent, arrived, device)
        block.line(f"{copy}.wait_send()")
    else:
        copy = _copy(block, eqn, source, destination, arrived, sent, device)
        block.line(f"{copy}.wait_recv()")


def semaphore_signal(block: Writer, eqn: Any) -> None:
    ref, transforms, by, device, core = jax.tree.unflatten(eqn.params["args_tree"], eqn.invars)
    text = f"pl.semaphore_signal({_view(block, ref, transforms)}, {block.read(by, plain=True)}"
    if device is not None:
        text += f", device_id={_device(block, device)}{_device_type(eqn)}"
    if core is not None:
        text += f", core_index={block.index(core)}"
    block.line(f"{text})")


def semaphore_wait(block: Writer, eqn: Any) -> None:
    ref, transforms, by, decrement = jax.tree.unflatten(eqn.params["args_tree"], eqn.invars)
    option = block.read(decrement, plain=True)
    text = f"{_view(block, ref, transforms)}, {block.read(by, plain=True)}"
    block.line(f"pl.semaphore_wait({text}{'' if option == 'True' else f', decrement={option}'})")


def semaphore_read(block: Writer, eqn: Any) -> None:
    ref, transforms = jax.tree.unflatten(eqn.params["args_tree"], eqn.invars)
    block.assign(eqn.outvars, f"pl.semaphore_read({_view(block, ref, transforms)})")


def _copy(
    block: Writer, eqn: Any, source: Any, destination: Any, arrived: Any, sent: Any, device: Any
) -> str:
    ends = f"{_whole(block, source)}, {_whole(block, destination)}"
    if sent is None and device is None:
        return f"pltpu.make_async_copy({ends}, {_whole(block, arrived)})"
    if sent is None or device is None:
        raise values.CannotUnparse("a copy with a device or a semaphore for its source, not both")
    text = f"{ends}, {_whole(block, sent)}, {_whole(block, arrived)}"
    return (
        f"pltpu.make_async_remote_copy({text}, "
        f"device_id={_device(block, device)}{_device_type(eqn)})"
    )


def _device(block: Writer, device: Any) -> str:
    if device is None:
        return "None"
    if isinstance(device, dict):
        items = (f"{values.parameter(k)}: {_device(block, v)}" for k, v in device.items())
        return "{" + ", ".join(items) + "}"
    if isinstance(device, (tuple, list)):
        return "(" + "".join(f"{_device(block, d)}, " for d in device) + ")"
    return block.read(device)


def _device_type(eqn: Any) -> str:
    kind = eqn.params.get("device_id_type")
    usual = pallas_primitives.DeviceIdType.MESH
    return "" if kind is None or kind is usual else f", device_id_type=pl.DeviceIdType.{kind.name}"


def _whole(block: Writer, ref: Any) -> str:
    if isinstance(ref, state_types.TransformedRef):
        return _view(block, ref.ref, ref.transforms)
    return block.read(ref)


def _view(block: Writer, ref: Any, transforms: Sequence[Any]) -> str:
    text = block.read(ref)
    for transform in transforms:
        text += _transform(block, transform)
    return text


def _access(block: Writer, ref: Any, transforms: Sequence[Any]) -> str:
    if transforms and isinstance(transforms[-1], indexing.NDIndexer):
        return f"{_view(block, ref, transforms[:-1])}[{_indices(block, transforms[-1])}]"
    return f"{_view(block, ref, transforms)}[...]"


def _transform(block: Writer, transform: Any) -> str:
    if isinstance(transform, indexing.NDIndexer):
        return f".at[{_indices(block, transform)}]"
    kind = type(transform).__name__
    if kind in ("BitcastTransform", "RefBitcaster"):
        return f".bitcast({values.dtype(transform.dtype)})"
    if kind in ("ReshapeTransform", "RefReshaper"):
        return f".reshape({values.parameter(tuple(transform.shape))})"
    if kind in ("TransposeTransform", "RefTransposer"):
        return f".transpose({values.parameter(tuple(transform.permutation))})"
    raise values.CannotUnparse(f"a ref seen through a {kind}")


def _indices(block: Writer, indexer: Any) -> str:
    sizes = zip(indexer.indices, indexer.shape, strict=True)
    return ", ".join(_one_index(block, index, size) for index, size in sizes)


def _one_index(block: Writer, index: Any, size: Any) -> str:
    if not isinstance(index, indexing.Slice):
        return str(index) if isinstance(index, int) else block.index(index)
    start, length, stride = index.start, index.size, index.stride
    if isinstance(start, int) and isinstance(length, int) and stride == 1:
        return ":" if (start, length) == (0, size) else f"{start}:{start + length}"
    texts = [str(x) if isinstance(x, int) else block.index(x) for x in (start, length)]
    stride_text = "" if stride == 1 else f", {stride}"
    return f"pl.ds({', '.join(texts)}{stride_text})"
