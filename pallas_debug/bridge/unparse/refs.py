"""Unparser for refs: reads, writes and indices; DMAs and semaphores."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from pallas_debug.bridge import jaxcompat, primitives
from pallas_debug.bridge.jaxcompat import indexing, pallas_primitives
from pallas_debug.bridge.normal_forms import CopyForm, RefChain
from pallas_debug.bridge.unparse import values
from pallas_debug.bridge.unparse.page import Writer


def get(block: Writer, eqn: Any) -> None:
    block.assign(eqn.outvars, _access(block, primitives.form(eqn).place))


def swap(block: Writer, eqn: Any) -> None:
    store = primitives.form(eqn)
    if not all(map(block.is_dropped, eqn.outvars)):
        raise values.CannotUnparse("a swap, whose old values it uses")
    block.line(f"{_access(block, store.place)} = {block.read(store.value)}")


def dma_start(block: Writer, eqn: Any) -> None:
    options = {name: eqn.params[name] for name in ("priority", "add") if eqn.params.get(name)}
    copy = _copy(block, eqn, primitives.form(eqn))
    block.line(f"{copy}.start({values.keywords(options.items())})")


def dma_wait(block: Writer, eqn: Any) -> None:
    wait = primitives.form(eqn)
    if wait.sent is None:
        block.line(f"{_copy(block, eqn, replace(wait, device=None))}.wait()")
    elif jaxcompat.is_wait_of_sender(eqn.params):  # the two sides are swapped
        copy = replace(
            wait,
            source=wait.destination,
            destination=wait.source,
            received=wait.sent,
            sent=wait.received,
        )
        block.line(f"{_copy(block, eqn, copy)}.wait_send()")
    else:
        block.line(f"{_copy(block, eqn, wait)}.wait_recv()")


def semaphore_signal(block: Writer, eqn: Any) -> None:
    signal = primitives.form(eqn)
    text = (
        f"pl.semaphore_signal({_view(block, signal.place)}, {block.read(signal.amount, plain=True)}"
    )
    if signal.device is not None:
        text += f", device_id={_device(block, signal.device)}{_device_type(eqn)}"
    if signal.core is not None:
        text += f", core_index={block.index(signal.core)}"
    block.line(f"{text})")


def semaphore_wait(block: Writer, eqn: Any) -> None:
    wait = primitives.form(eqn)
    option = block.read(wait.decrements, plain=True)
    text = f"{_view(block, wait.place)}, {block.read(wait.amount, plain=True)}"
    block.line(f"pl.semaphore_wait({text}{'' if option == 'True' else f', decrement={option}'})")


def semaphore_read(block: Writer, eqn: Any) -> None:
    block.assign(eqn.outvars, f"pl.semaphore_read({_view(block, primitives.form(eqn).place)})")


def _copy(block: Writer, eqn: Any, copy: CopyForm) -> str:
    ends = f"{_view(block, copy.source)}, {_view(block, copy.destination)}"
    received = _view(block, copy.received)
    if copy.sent is None and copy.device is None:
        return f"pltpu.make_async_copy({ends}, {received})"
    if copy.sent is None or copy.device is None:
        raise values.CannotUnparse("a copy with a device or a semaphore for its source, not both")
    return (
        f"pltpu.make_async_remote_copy({ends}, {_view(block, copy.sent)}, {received}, "
        f"device_id={_device(block, copy.device)}{_device_type(eqn)})"
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


def _view(block: Writer, at: RefChain) -> str:
    return block.read(at.ref) + "".join(_transform(block, one) for one in at.transforms)


def _access(block: Writer, at: RefChain) -> str:
    if at.transforms and isinstance(at.transforms[-1], indexing.NDIndexer):
        outer = _view(block, RefChain(at.ref, at.transforms[:-1]))
        return f"{outer}[{_indices(block, at.transforms[-1])}]"
    return f"{_view(block, at)}[...]"


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
