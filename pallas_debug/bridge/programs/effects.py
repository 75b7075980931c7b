"""Decode prints, checks, callbacks and random numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from pallas_debug.bridge import jaxcompat
from pallas_debug.bridge.instrument import printing
from pallas_debug.bridge.jaxcompat import (
    checkify,
    debugging,
    prng,
    source_info_util,
    tpu_primitives,
)
from pallas_debug.bridge.programs import program as ir
from pallas_debug.bridge.programs.decode import PLAIN_INSIDE, Decoder, is_tpu_key, rule


@rule(debugging.debug_print_p)
def _print(decoder: Decoder, eqn: Any, inputs: list[Any], site: ir.StepSite) -> None:
    params = eqn.params

    def text(values: Sequence[Any]) -> str:
        return printing.text(params, [np.asarray(value) for value in values])

    regs = tuple(map(decoder.reg, inputs))
    decoder.emit(ir.PrintStep(site=site, text=text, inputs=regs))


@rule(debugging.debug_callback_p)
def _callback(decoder: Decoder, eqn: Any, inputs: list[Any], site: ir.StepSite) -> None:
    function = eqn.params["callback"]
    regs = tuple(map(decoder.reg, inputs))
    decoder.emit(ir.Callback(site=site, function=function, inputs=regs))


@rule(checkify.check_p)
def _check(decoder: Decoder, eqn: Any, inputs: list[Any], site: ir.StepSite) -> None:
    tree = eqn.params["err_tree"]

    def message(values: Sequence[Any]) -> str | None:
        failed: str | None = jax.tree.unflatten(tree, [*map(jax.numpy.asarray, values)]).get()
        return failed

    regs = tuple(map(decoder.reg, inputs))
    decoder.emit(ir.CheckStep(site=site, message=message, inputs=regs))


# Random numbers. A key of the TPU is a pair of words, in a register as a scalar of dtype `ir.KEY`.


@rule(tpu_primitives.prng_seed_p)
def _seed(decoder: Decoder, eqn: Any, inputs: list[Any], site: ir.StepSite) -> Any:
    decoder.emit(ir.Seed(site=site, inputs=tuple(map(decoder.reg, inputs))))


@rule(tpu_primitives.prng_random_bits_p)
def _bits(decoder: Decoder, eqn: Any, inputs: list[Any], site: ir.StepSite) -> Any:
    shape = tuple(eqn.params["shape"])
    return decoder.emit(ir.RandomBits(site=site, shape=shape, output=decoder.new()))


@rule(tpu_primitives.split_key_p)
def _split(decoder: Decoder, eqn: Any, inputs: list[Any], site: ir.StepSite) -> Any:
    return decoder.compute(site, inputs, 2, lambda key: list(key["words"].flat))


@rule(tpu_primitives.join_key_p)
def _join(decoder: Decoder, eqn: Any, inputs: list[Any], site: ir.StepSite) -> Any:
    return decoder.compute(site, inputs, 1, lambda *words: [_key(words)])


def _key(words: Sequence[Any]) -> Any:
    key = np.zeros((), ir.KEY)
    key["words"] = np.array([[int(word) & 0xFFFFFFFF for word in words]], np.uint32)
    return key[()]


PLAIN_INSIDE.update((prng.random_seed_p, prng.random_bits_p, prng.random_fold_in_p))


@rule(prng.random_seed_p)
def _key_of_seed(decoder: Decoder, eqn: Any, inputs: list[Any], site: ir.StepSite) -> Any:
    """A key of the TPU from a seed; keys of jax are plain values."""
    words = len(eqn.params["impl"].key_shape)
    if words == 0:  # the key of `stateful_…`, which is unused
        return [decoder.new(np.int32(0))]
    return decoder.compute(site, inputs, 1, lambda seed: [_key((seed, seed))])


@rule(prng.random_bits_p)
def _bits_of_key(decoder: Decoder, eqn: Any, inputs: list[Any], site: ir.StepSite) -> Any:
    return _inlined(decoder, eqn.invars[0].aval.dtype._impl.random_bits, eqn, inputs)


@rule(prng.random_fold_in_p)
def _fold_in(decoder: Decoder, eqn: Any, inputs: list[Any], site: ir.StepSite) -> Any:
    return _inlined(decoder, eqn.invars[0].aval.dtype._impl.fold_in, eqn, inputs)


def _inlined(decoder: Decoder, function: Any, eqn: Any, inputs: list[Any]) -> list[Any]:
    """The key's implementation, as in Mosaic."""
    assert is_tpu_key(eqn.invars[0].aval)
    avals = [jax.ShapeDtypeStruct(atom.aval.shape, atom.aval.dtype) for atom in eqn.invars]
    with source_info_util.user_context(eqn.source_info.traceback):
        closed = jax.make_jaxpr(lambda *args: function(*args, **eqn.params))(*avals)
    results = decoder.run(*jaxcompat.opened(closed), inputs)
    dtype = eqn.outvars[0].aval.dtype
    if isinstance(dtype, np.dtype):  # Mosaic does not distinguish signed from unsigned words
        (result,) = results
        return list(decoder.compute(decoder.here, [result], 1, lambda bits: [bits.view(dtype)]))
    return results
