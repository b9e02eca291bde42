"""An operation that acts once, and counts in a file how often it did."""

import os
from pathlib import Path

from dragoman import operation


@operation("bank", effect="once")
def pay(amount: int) -> str:
    """Pay an amount."""
    with Path(os.environ["PAYMENTS"]).open("a") as payments:
        payments.write(f"{amount}\n")
    return f"paid {amount}"
