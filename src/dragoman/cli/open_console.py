"""`dragoman open`: open the web console in a browser, signed in."""

from __future__ import annotations

import asyncio
import os
import sys
import webbrowser
from typing import Annotated

import typer

from dragoman.cli.hub_client.connect import HubTarget, connect
from dragoman.cli.options import DEFAULT_HUB, Hub, Key
from dragoman.cli.terminal import examples, print_line, print_note

commands = typer.Typer()
EPILOG = examples(
    ("dragoman open", "the console of the hub at http://127.0.0.1:8000"),
    ("dragoman open --key dgm_…", "signed in as the owner of this key"),
    ("dragoman open --print", "print the link, for a browser on another machine"),
)


@commands.command("open", epilog=EPILOG)
def open_console(
    *,
    hub: Hub = None,
    key: Key = None,
    prints: Annotated[bool, typer.Option("--print", help="Print the link; open no browser.")] = False,
) -> None:
    """Open the web console in the browser, signed in.

    The link signs in as the key's owner once, within two minutes, so that no key is typed into a page. Where
    there is no browser it is printed. A hub without keys needs no link.
    """
    url, is_secret = asyncio.run(make_link(HubTarget(hub or DEFAULT_HUB, key)))
    if not prints and has_browser() and webbrowser.open(url):
        print_note(f"opened {url.partition('#')[0]}")
        return
    print_line(url)
    if is_secret:
        print_note("this link signs in once, within two minutes")


async def make_link(target: HubTarget) -> tuple[str, bool]:
    """Return the address of a hub's console that signs in, and whether it is secret."""
    async with connect(target) as client:
        link = await client.request("POST", "/api/console/links")
    return str(link["url"]), link["expiresAt"] is not None


def has_browser() -> bool:
    """Return whether a graphical browser can be opened: one in the terminal would end with this program."""
    if sys.platform.startswith("linux") and not (
        os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY") or os.environ.get("BROWSER")
    ):
        return False
    try:
        webbrowser.get()
    except webbrowser.Error:
        return False
    return True
