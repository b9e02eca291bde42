"""HTML pages: the API reference, rendered from the OpenAPI document, and the home page.

Plain HTML and CSS without scripts; nothing is loaded from elsewhere.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Mapping
from html import escape
from importlib.resources import files
from string import Template
from typing import Any, TypeAlias

Document: TypeAlias = Mapping[str, Any]
SCHEMAS = "#/components/schemas/"
LINE_CONTINUATION = " \\\n"
VERBS = ("get", "post", "put", "patch", "delete")
HOME_LINKS = {
    "/docs": "The documentation: a tutorial, guides, reference and the reasons.",
    "/docs/api": "How to talk to this hub, every address with an example.",
    "/openapi.json": "The same for programs: an OpenAPI 3.1 document.",
    "/healthz": "Is the process alive?",
    "/readyz": "Is the hub ready to work?",
    "/metrics": "What it does and has done, for Prometheus.",
}


def render_reference(document: Document) -> str:
    """Render the whole reference as one page."""
    page = ReferencePage(document)
    return render_template(
        f"{document['info']['title']}: reference", nav=page.nav(), body="\n".join(page.body())
    )


def render_home(version: str) -> str:
    """Render the page at `/`."""
    links = "".join(
        f'<li><a class="card" href="{path}"><strong><code>{path}</code></strong><br>{escape(words)}</a></li>'
        for path, words in HOME_LINKS.items()
    )
    body = (
        "<h1>Dragoman</h1>"
        '<p class="lead">An agent hub you own: one process between people, models and tools.</p>'
        "<p>It runs. Point a <code>useChat</code> front end at <code>/api/chat</code>, a client of OpenAI at"
        " <code>/v1</code>, one of Anthropic at <code>/</code>, or read on:</p>"
        f'<ul class="links">{links}</ul>'
    )
    return render_template("Dragoman", nav=brand_link(version), body=body)


def render_template(title: str, *, nav: str, body: str) -> str:
    template = Template(files("dragoman.server.reference").joinpath("page.html").read_text(encoding="utf-8"))
    return template.substitute(title=escape(title), nav=nav, body=body)


def brand_link(version: str) -> str:
    return f'<a class="brand" href="/">Dragoman <small>{escape(version)}</small></a>'


class ReferencePage:
    """Renders the parts of the reference."""

    def __init__(self, document: Document) -> None:
        self._document = document
        self._routes = list(list_operations(document["paths"]))

    def nav(self) -> str:
        """Render the navigation list."""
        info = self._document["info"]
        blocks = [brand_link(str(info["version"]))]
        for tag in self._document["tags"]:
            items = (
                f'<li><a href="#{operation["operationId"]}"><span class="verb {verb}">{verb.upper()}</span>'
                f"<span>{escape(operation['summary'])}</span></a></li>"
                for verb, _, operation in self._tagged_operations(tag["name"])
            )
            blocks.append(f"<h2>{escape(tag['name'])}</h2><ul>{''.join(items)}</ul>")
        blocks.append('<h2>shapes</h2><ul><li><a href="#shapes">Everything that is sent</a></li></ul>')
        return "".join(blocks)

    def body(self) -> Iterator[str]:
        """The text."""
        info = self._document["info"]
        yield f"<h1>{escape(info['title'])}</h1>"
        yield f'<p class="lead">{escape(info["summary"])}</p>{prose(info["description"])}'
        for tag in self._document["tags"]:
            yield f'<h2 id="tag-{tag["name"]}">{escape(tag["name"].title())}</h2>{prose(tag["description"])}'
            for verb, path, operation in self._tagged_operations(tag["name"]):
                yield self._card(verb, path, operation=operation)
        yield '<h2 id="shapes">Shapes</h2>'
        for name, schema in self._document["components"]["schemas"].items():
            yield self._shape(name, schema)

    def _tagged_operations(self, tag: str) -> Iterator[tuple[str, str, Document]]:
        return (route for route in self._routes if tag in route[2]["tags"] and "x-same-as" not in route[2])

    def _card(self, verb: str, path: str, *, operation: Document) -> str:
        public = '<span class="open">no key needed</span>' if operation.get("security") == [] else ""
        badge = f'<span class="verb {verb}">{verb.upper()}</span>'
        parts = (
            f"<h3>{escape(operation['summary'])}</h3>",
            f'<div class="route">{badge}<code>{escape(path)}</code>{public}</div>',
            prose(operation.get("description", "")),
            self._aliases(path),
            self._parameters(operation),
            self._request(operation),
            self._curl(verb, path, operation=operation),
            self._responses(operation),
        )
        return f'<section class="card" id="{operation["operationId"]}">{"".join(parts)}</section>'

    def _aliases(self, path: str) -> str:
        same = {where for _, where, operation in self._routes if operation.get("x-same-as") == path}
        spelled = ", ".join(f"<code>{escape(where)}</code>" for where in sorted(same))
        return f'<p class="same">Also at {spelled}</p>' if spelled else ""

    def _parameters(self, operation: Document) -> str:
        rows = []
        for parameter in map(self._resolve, operation.get("parameters", ())):
            about = {**parameter["schema"], "description": parameter["description"]}
            rows.append(parameter_row(parameter["name"], about, required=parameter.get("required", False)))
        return f"<h4>Parameters</h4><table>{''.join(rows)}</table>" if rows else ""

    def _request(self, operation: Document) -> str:
        if "requestBody" not in operation:
            return ""
        return f"<h4>Body</h4><p>{describe_type(self._body(operation)['schema'])}</p>"

    def _curl(self, verb: str, path: str, *, operation: Document) -> str:
        """Return the request as a curl command."""
        stream = "-N " if "text/event-stream" in self._response_content(operation) else ""
        method = (
            f"-X {verb.upper()} "
            if verb not in ("get", "post") or self._is_bodiless_post(verb, operation)
            else ""
        )
        lines = [f'curl {stream}{method}"$HUB{self._example_path(path, operation)}"']
        if operation.get("security") != []:
            lines.append('  -H "Authorization: Bearer $KEY"')
        if "requestBody" in operation:
            body = json.dumps(first_example(self._body(operation)), indent=2, ensure_ascii=False)
            lines.append(f"  -d {shlex.quote(body)}")
        return f"<h4>Try it</h4><pre><code>{escape(LINE_CONTINUATION.join(lines))}</code></pre>"

    def _is_bodiless_post(self, verb: str, operation: Document) -> bool:
        return verb == "post" and "requestBody" not in operation

    def _body(self, operation: Document) -> Document:
        media: Document = self._resolve(operation["requestBody"])["content"]["application/json"]
        return media

    def _response_content(self, operation: Document) -> Document:
        content: Document = self._resolve(operation["responses"].get("200", {})).get("content", {})
        return content

    def _example_path(self, path: str, operation: Document) -> str:
        for parameter in map(self._resolve, operation.get("parameters", ())):
            path = path.replace(f"{{{parameter['name']}}}", str(parameter.get("example", "x")))
        return path

    def _responses(self, operation: Document) -> str:
        rows = []
        for status, named in operation["responses"].items():
            response = self._resolve(named)
            shown = [self._media(name, media) for name, media in response.get("content", {}).items()]
            shown.append(self._headers(response))
            what = f"{prose(response['description'])}{''.join(shown) if status < '300' else ''}"
            rows.append(f"<tr><td><code>{status}</code></td><td>{what}</td></tr>")
        return f"<h4>Answers</h4><table>{''.join(rows)}</table>"

    def _headers(self, response: Document) -> str:
        named = {name: self._resolve(header) for name, header in response.get("headers", {}).items()}
        items = "".join(
            f"<li><code>{escape(name)}</code> {inline(header['description'])}</li>"
            for name, header in named.items()
        )
        return f'<p class="soft">Headers</p><ul>{items}</ul>' if items else ""

    def _media(self, name: str, media: Document) -> str:
        shape = describe_type(media.get("x-event-schema") or media["schema"])
        shown = media.get("example") or first_example(media)
        text = shown if isinstance(shown, str) else json.dumps(shown, indent=2)
        sample = f"<pre><code>{escape(text)}</code></pre>" if shown else ""
        return f'<p class="soft"><code>{escape(name)}</code> {shape}</p>{sample}'

    def _shape(self, name: str, schema: Document) -> str:
        head = f'<strong>{escape(name)}</strong> <span class="soft">{inline(first_line(schema))}</span>'
        inside = self._fields(schema)
        return f'<details class="card" id="shape-{name}"><summary>{head}</summary>{inside}</details>'

    def _fields(self, schema: Document) -> str:
        needed = schema.get("required", ())
        rows = [
            parameter_row(name, rules, required=name in needed)
            for name, rules in schema.get("properties", {}).items()
        ]
        table = f"<table>{''.join(rows)}</table>" if rows else ""
        members = "".join(
            self._fields(each) if "properties" in each else "" for each in schema.get("allOf", ())
        )
        return table + members + ("" if rows else f"<p>{describe_type(schema)}</p>")

    def _resolve(self, value: Document) -> Document:
        if "$ref" not in value:
            return value
        found: Any = self._document
        for step in value["$ref"].removeprefix("#/").split("/"):
            found = found[step]
        return {**found, **{name: reply for name, reply in value.items() if name != "$ref"}}


def list_operations(paths: Document) -> Iterator[tuple[str, str, Document]]:
    """Yield the verb, path and description of each operation."""
    for path, item in paths.items():
        yield from ((verb, path, item[verb]) for verb in VERBS if verb in item)


def parameter_row(name: str, rules: Document, *, required: bool) -> str:
    mark = ' <span class="need">required</span>' if required else ""
    default = f" Default <code>{escape(json.dumps(rules['default']))}</code>." if "default" in rules else ""
    words = inline(rules.get("description", "")) + default
    what = f'<span class="kind">{describe_type(rules)}</span> {words}'
    return f"<tr><td><code>{escape(name)}</code>{mark}</td><td>{what}</td></tr>"


def describe_type(schema: Document) -> str:
    """Describe the type of a schema; named shapes become links."""
    match schema:
        case {"$ref": str(reference)}:
            name = reference.removeprefix(SCHEMAS)
            return f'<a href="#shape-{name}">{escape(name)}</a>'
        case {"enum": list(values)}:
            return ", ".join(f"<code>{escape(str(value))}</code>" for value in values)
        case {"oneOf": list(members)} | {"anyOf": list(members)} | {"allOf": list(members)}:
            return ", ".join(describe_type(member) for member in members)
        case {"type": "array", "items": items}:
            return f"list of {describe_type(items)}"
        case {"type": str() | list() as types}:
            return " or ".join([types] if isinstance(types, str) else types)
        case _:
            return "any value"


def first_example(media: Document) -> Any:
    """Return the first example of a body."""
    if "example" in media:
        return media["example"]
    return next((each["value"] for each in media.get("examples", {}).values()), None)


def first_line(schema: Document) -> str:
    return str(schema.get("description", "")).strip().partition("\n")[0]


def prose(text: str) -> str:
    """Render paragraphs; text in backticks becomes code."""
    return "".join(f"<p>{inline(part)}</p>" for part in text.strip().split("\n\n") if part)


def inline(text: str) -> str:
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(text.strip()))
