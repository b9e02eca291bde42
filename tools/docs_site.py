"""Hooks of MkDocs: links out of docs/, `llms.txt`, and the hashes of inline scripts for the hub's CSP."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import shutil
from pathlib import Path
from typing import Any

LINK = re.compile(r"(?<!!)\[([^\]]+)\]\(([^)#\s]+)(#[^)\s]*)?\)")
SCRIPT = re.compile(r"<script(?P<attributes>[^>]*)>(?P<text>.*?)</script>", re.DOTALL)
TITLE = re.compile(r"^# (.+)$", re.MULTILINE)
UNNEEDED = ("**/*.map", "assets/javascripts/lunr", "sitemap.xml", "sitemap.xml.gz", "404.html")
SUMMARY_LENGTH = 200


def on_page_markdown(markdown: str, *, page: Any, config: Any, **_: Any) -> str:
    """Show what a link that leads out of docs/ is named, without the link: the site has no such file."""
    docs = Path(config["docs_dir"]).resolve()
    here = (docs / page.file.src_uri).parent

    def replace(found: re.Match[str]) -> str:
        text, target = found[1], found[2]
        if "://" in target or target.startswith(("mailto:", "/")):
            return found[0]
        inside = (here / target).resolve().is_relative_to(docs)
        is_page = inside and target.endswith(".md") and (here / target).exists()
        if is_page or (inside and not target.endswith(".md")):
            return found[0]
        return text

    return LINK.sub(replace, markdown)


def on_post_build(*, config: Any, **_: Any) -> None:
    """Write `llms.txt`, the pages as Markdown beside their HTML, and the hashes of inline scripts."""
    site, docs = Path(config["site_dir"]), Path(config["docs_dir"])
    for pattern in UNNEEDED:
        for path in list(site.glob(pattern)):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    hashes = sorted({digest for page in site.rglob("*.html") for digest in script_hashes(page)})
    (site / "csp.json").write_text(json.dumps(hashes), encoding="utf-8")
    lines = ["# Dragoman", "", "> An agent hub you own: one process between people, models and tools.", ""]
    for page in sorted(docs.glob("*.md")):
        text = page.read_text(encoding="utf-8")
        (site / page.name).write_text(text, encoding="utf-8")
        lines.append(f"- [{title_of(text, page)}]({page.name}): {summary_of(text)}")
    (site / "llms.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")


def script_hashes(page: Path) -> list[str]:
    """Return the CSP sources of a page's inline scripts."""
    found = SCRIPT.finditer(page.read_text(encoding="utf-8"))
    inline = [
        each["text"]
        for each in found
        if "src=" not in each["attributes"] and "json" not in each["attributes"]
    ]
    return [
        f"'sha256-{base64.b64encode(hashlib.sha256(each.encode()).digest()).decode()}'" for each in inline
    ]


def title_of(text: str, page: Path) -> str:
    found = TITLE.search(text)
    return found[1] if found else page.stem


def summary_of(text: str) -> str:
    """Return the beginning of the first paragraph, without links and marks."""
    body = TITLE.sub("", text, count=1)
    paragraphs = [part for part in body.split("\n\n") if part.strip() and part.strip()[0] not in "#|`>-<"]
    plain = re.sub(r"\[([^\]]+)\]\([^)]*\)", r"\1", paragraphs[0] if paragraphs else "")
    return " ".join(re.sub(r"[*`]", "", plain).split())[:SUMMARY_LENGTH]
