"""Notes: a store in memory. Shows effects, the call's context, and that one operation can call another."""

from typing import Annotated

from pydantic import BaseModel, Field

from dragoman.errors import NotFound
from dragoman.operations import Context, operation


class Note(BaseModel):
    """A note, and whose it is."""

    id: int
    owner: str
    text: str


notes: dict[int, Note] = {}


@operation("notes", effect="once")
async def add(text: Annotated[str, Field(min_length=1, max_length=10_000)], context: Context) -> Note:
    """Add a note.

    Args:
        text: What to keep.
    """
    note = Note(id=max(notes, default=0) + 1, owner=context.identity.owner, text=text)
    notes[note.id] = note
    return note


@operation("notes", effect="read")
async def find(context: Context, words: str = "") -> list[Note]:
    """Find your notes that hold all of some words; all of your notes without words."""
    wanted = words.lower().split()
    mine = (note for note in notes.values() if note.owner == context.identity.owner)
    return [note for note in mine if all(word in note.text.lower() for word in wanted)]


@operation("notes", effect="idempotent", approval=True)
async def remove(id: int, context: Context) -> bool:
    """Remove a note of yours. Gives whether it was there."""
    note = notes.get(id)
    if note is not None and note.owner != context.identity.owner:
        raise NotFound(f"you have no note {id}")
    return notes.pop(id, None) is not None


@operation("notes", effect="once")
async def summary(context: Context) -> Note:
    """Add a note that says how many notes you have; it uses notes.find and notes.add to do so."""
    found = await context.call("notes.find")
    return Note.model_validate(await context.call("notes.add", {"text": f"{len(found)} notes until here"}))
