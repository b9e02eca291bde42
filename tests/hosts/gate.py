"""What the operations of `gated_operations` have done, in every hub of this process."""

MADE: list[str] = []
