"""Units: convert lengths, masses, volumes, durations, data sizes and temperatures."""

from typing import Annotated, TypedDict

from pydantic import Field

from dragoman.errors import BadRequest
from dragoman.operations import operation

# How many of the first unit of its row one of a unit is.
UNITS: dict[str, dict[str, float]] = {
    "length": {
        "m": 1,
        "km": 1000,
        "cm": 0.01,
        "mm": 0.001,
        "in": 0.0254,
        "ft": 0.3048,
        "yd": 0.9144,
        "mi": 1609.344,
    },
    "mass": {"kg": 1, "g": 0.001, "mg": 1e-6, "t": 1000, "oz": 0.028349523125, "lb": 0.45359237},
    "volume": {"l": 1, "ml": 0.001, "m3": 1000, "gal": 3.785411784, "pt": 0.473176473, "cup": 0.2365882365},
    "duration": {"s": 1, "ms": 0.001, "min": 60, "h": 3600, "d": 86400, "wk": 604800},
    "data": {"B": 1, "kB": 1e3, "MB": 1e6, "GB": 1e9, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30},
}
# What to add to a temperature, and what to divide it by then, to have it in kelvin.
TEMPERATURES = {"K": (0.0, 1.0), "C": (273.15, 1.0), "F": (459.67, 1.8)}


class Quantity(TypedDict):
    """A value with its unit."""

    value: float
    unit: str


@operation("units", effect="read")
async def convert(
    value: float,
    unit: Annotated[str, Field(examples=["mi", "F"])],
    to: Annotated[str, Field(examples=["km", "C"])],
) -> Quantity:
    """Convert a value from one unit of measure to another of the same kind.

    Args:
        value: The value to convert.
        unit: The unit that it is in, as units.kinds shows it.
        to: The unit to convert to.
    """
    if unit in TEMPERATURES and to in TEMPERATURES:
        (offset, scale), (to_offset, to_scale) = TEMPERATURES[unit], TEMPERATURES[to]
        return Quantity(value=round((value + offset) / scale * to_scale - to_offset, 9), unit=to)
    for factors in UNITS.values():
        if unit in factors and to in factors:
            return Quantity(value=value * factors[unit] / factors[to], unit=to)
    raise BadRequest(
        f"{unit!r} cannot be converted to {to!r}", hint="units.kinds shows which units go together"
    )


@operation("units", effect="read")
async def kinds() -> dict[str, list[str]]:
    """List the kinds of units there are, and the units of each."""
    return {**{kind: list(factors) for kind, factors in UNITS.items()}, "temperature": list(TEMPERATURES)}
