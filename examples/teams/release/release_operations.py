"""What a release team needs: the history of a git repository, and a page to publish on."""

import asyncio
from pathlib import Path
from typing import Annotated

from pydantic import Field

from dragoman.errors import CallError
from dragoman.operations import operation

REPOSITORY = Path("repository")
PAGE = Path("page.md")


@operation("git", effect="read")
async def log(count: Annotated[int, Field(ge=1, le=200)] = 20) -> list[str]:
    """List the titles of the last commits of the repository, newest first.

    Args:
        count: How many.
    """
    arguments = ["git", "-C", str(REPOSITORY), "log", f"--max-count={count}", "--format=%s"]
    process = await asyncio.create_subprocess_exec(
        *arguments, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    output, errors = await process.communicate()
    if process.returncode:
        raise CallError(f"git failed: {errors.decode(errors='replace').strip()[:500]}")
    return output.decode(errors="replace").splitlines()


@operation("release_page", effect="once")
def publish(version: str, notes: str) -> str:
    """Publish the notes of a release, for everybody to see.

    Args:
        version: The release, such as 1.2.0.
        notes: Its notes, in Markdown.
    """
    before = PAGE.read_text(encoding="utf-8") if PAGE.exists() else ""
    PAGE.write_text(f"# {version}\n\n{notes}\n\n{before}", encoding="utf-8")
    return f"published {version}"
