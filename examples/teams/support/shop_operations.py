"""The shop whose customers the support desk helps. Its orders are in memory."""

from dragoman.errors import NotFound
from dragoman.operations import operation

ORDERS = {"A-17": {"item": "lamp", "paid": 40.0, "refunded": 0.0}}


@operation("shop", effect="read")
async def order(number: str) -> dict[str, object]:
    """Look up an order.

    Args:
        number: The number of the order, such as A-17.
    """
    if number not in ORDERS:
        raise NotFound(f"there is no order {number!r}")
    return dict(ORDERS[number])


@operation("shop", effect="once")
async def refund(number: str, euros: float) -> str:
    """Pay back a part of an order.

    Args:
        number: The number of the order.
        euros: How much.
    """
    ORDERS[number]["refunded"] = euros
    return f"refunded {euros:.2f} euros of {number}"
