"""Reading of XLA's program around a kernel."""

from __future__ import annotations

from pallas_debug.ir.hlo import PlacedCall, labelled_calls

_CALL = (
    "  %pair = (f32[8]{0:T(8)S(1)}, /*index=1*/s32[]{:T(128)}) custom-call(%a, /*index=1*/%b), "
    'custom_call_target="tpu_custom_call", frontend_attributes={kernel_metadata={\n'
    '"pallas_debug":"12ab"\n}}, backend_config={"custom_call_config":{"body":"TUz"}}\n'
)
_DEFINITIONS = """
%body (p: f32[8]) -> f32[8] {
  %a = f32[8]{0:T(8)S(3)} parameter(0)
  ROOT %b = bf16[2,3]{1,0:T(8,128)(2,1)} fusion(%a), kind=kLoop
"""


def test_a_call_has_the_memory_space_of_each_operand_and_result() -> None:
    expected = PlacedCall(label="12ab", operands=(3, 0), results=(1, 0))
    assert labelled_calls(_DEFINITIONS + _CALL) == (expected,)


def test_calls_without_a_label_are_left_out() -> None:
    without = _CALL.replace('"pallas_debug":"12ab"', "").replace("%pair", "%other")
    assert labelled_calls(_DEFINITIONS + without) == ()
    assert len(labelled_calls(_DEFINITIONS + without + _CALL)) == 1
