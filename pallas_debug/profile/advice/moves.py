"""Instructions that move data between lanes and sublanes, and compute nothing."""

_MOVES = ("vperm", "vpop.permute", "vrot", "vcombine", "vbcast", "vcompose")


def is_move(opcode: str) -> bool:
    """Return whether an instruction only moves data within or between vector registers.

    Transposes do not count.
    """
    return opcode.startswith(_MOVES)


def is_transpose(opcode: str) -> bool:
    """Return whether an instruction feeds a transpose unit or reads its result."""
    return opcode.startswith(("vxpose", "vpop.trf"))


def is_vector_instruction(opcode: str) -> bool:
    """Return whether an instruction works on vector registers."""
    return opcode.startswith("v") and not opcode.startswith(("vsync", "vset", "vmov.", "vtrace"))


def computes(opcode: str) -> bool:
    """Return whether an instruction computes with vector registers: not a load or store."""
    return is_vector_instruction(opcode) and not opcode.startswith(("vld", "vst"))


_UNORDERED = ("vadd", "vmax", "vmin", "vand", "vor", "vxor", "vsel", "vmatmul", "vmatres", "vpop")


def is_one_after_another(opcode: str) -> bool:
    """Return whether a chain of such instructions has a fixed order, unlike a sum."""
    return is_vector_instruction(opcode) and not opcode.startswith((*_UNORDERED, *_MOVES))
