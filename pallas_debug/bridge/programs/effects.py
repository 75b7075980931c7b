"""Decode prints, checks, callbacks and random numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
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
from pallas_debug.bridge.programs.accesses import as_step
from pallas_debug.bridge.programs.decode import PLAIN_INSIDE, Decoder, is_tpu_key, rule


def _text(_: Decoder, eqn: Any) -> Callable[[Sequence[Any]], str]:
    return lambda values: printing.text(eqn.params, [np.asarray(value) for value in values])


def _message(_: Decoder, eqn: Any) -> Callable[[Sequence[Any]], str | None]:
    tree = eqn.params["err_tree"]

    def message(values: Sequence[Any]) -> str | None:
        failed: str | None = jax.tree.unflatten(tree, [*map(jax.numpy.asarray, values)]).get()
        return failed

    return message


rule(debugging.debug_print_p)(as_step(ir.PrintStep, text=_text))
rule(debugging.debug_callback_p)(
    as_step(ir.Callback, function=lambda _, eqn: eqn.params["callback"])
)
rule(checkify.check_p)(as_step(ir.CheckStep, message=_message))

# Random numbers. A key of the TPU is a pair of words, in a register as a scalar of dtype `ir.KEY`.

rule(tpu_primitives.prng_seed_p)(as_step(ir.Seed))
rule(tpu_primitives.prng_random_bits_p)(
    as_step(ir.RandomBits, shape=lambda _, eqn: tuple(eqn.params["shape"]))
)


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
