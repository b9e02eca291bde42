"""What models have rejected is remembered, for a limited number of names that clients choose."""

from __future__ import annotations

from dragoman.providers.rejected_fields import MAX_MODELS, RejectedFields


def test_the_models_that_rejected_something_last_are_remembered() -> None:
    rejected = RejectedFields()
    rejected.add("first", "effort")
    rejected.add("second", "think")
    for number in range(MAX_MODELS - 2):
        rejected.add(f"invented-{number}", "effort")
    rejected.add("first", "format")  # moves to the end
    rejected.add("one more", "effort")
    assert rejected.of("first") == {"effort", "format"}
    assert rejected.of("second") == frozenset()
    assert rejected.of("one more") == {"effort"}
