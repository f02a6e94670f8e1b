"""The bits of NVML's throttle reasons, in words. Knows nothing of what they cost."""

from __future__ import annotations

from typing import Final

idle_bit: Final = 1  # clocks are low because there is nothing to do
names: Final = {
    idle_bit: "idle",
    2: "set clocks",
    4: "power cap",
    8: "hardware slowdown",
    16: "sync boost",
    32: "thermal (software)",
    64: "thermal (hardware)",
    128: "power brake",
    256: "display clocks",
    512: "board limit",
    1024: "reliability",
}


def bits_of(mask: int) -> tuple[int, ...]:
    """The single bits, lowest first."""
    return tuple(1 << place for place in range(mask.bit_length()) if mask >> place & 1)


def throttle_names(mask: int) -> tuple[str, ...]:
    """What holds clocks down, without "idle"; a bit of unknown meaning is named by its number."""
    return tuple(names.get(bit, f"bit {bit}") for bit in bits_of(mask) if bit != idle_bit)
