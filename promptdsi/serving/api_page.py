"""The API page at /docs: the OpenAPI description as HTML. It has no script and loads nothing from other hosts."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from html import escape
from typing import Any
from urllib.parse import quote, urlencode

Schema = dict[str, Any]
ERROR = '{"error": {"code": "not_found", "message": "there is no document …", "hint": "…", "request_id": "…"}}'
HEAD = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>PromptDSI: API</title>
<link rel="stylesheet" href="page/style.css">
<link rel="stylesheet" href="page/docs.css">
</head>
<body class="api">
<header class="top"><h1>API</h1><a href="./">Search</a></header>
<main>
"""
INTRODUCTION = f"""<p>JSON in and out. <a href="openapi.json">openapi.json</a> describes the same for programs;
<code>promptdsi.client.Client</code> calls it from Python. Where the server has a read token, every request needs it or the write token in
the header <code>Authorization: Bearer TOKEN</code>; what changes the index always needs the write token.</p>
<p>A response that is not a result has this form. With a header <code>Retry-After</code> nothing was done, and the same request may be sent
again after that many seconds.</p>
<pre>{escape(ERROR)}</pre>
"""


def render(description: Schema, address: str) -> str:
    """The page of an OpenAPI description; `address` is what its examples call, as `http://localhost:8000`."""
    paths = inline(description["paths"], description)
    routes = [(method.upper(), path, operation) for path, methods in paths.items() for method, operation in methods.items()]
    listed = "".join(f'<li><a href="#{anchor(method, path)}">{method} {escape(path)}</a></li>' for method, path, _ in routes)
    sections = "".join(render_route(method, path, operation, address) for method, path, operation in routes)
    statuses = {status: response["description"] for _, _, operation in routes for status, response in operation["responses"].items()}
    meanings = "".join(f"<dt>{status}</dt><dd>{escape(statuses[status])}</dd>" for status in sorted(statuses) if status >= "400")
    return f'{HEAD}{INTRODUCTION}<dl class="facts">{meanings}</dl>\n<ul>{listed}</ul>\n{sections}</main>\n</body>\n</html>\n'


def inline(node: Any, root: Schema) -> Any:
    """A description in which every reference is replaced by what it refers to; ours has no cycles."""
    if isinstance(node, dict):
        if "$ref" in node:
            return inline(root["components"]["schemas"][node["$ref"].rpartition("/")[2]], root)
        return {key: inline(value, root) for key, value in node.items()}
    return [inline(value, root) for value in node] if isinstance(node, list) else node


def render_route(method: str, path: str, operation: Schema, address: str) -> str:
    parts = [f'<section id="{anchor(method, path)}"><h2><code>{method} {escape(path)}</code></h2>']
    parts += [f"<p>{marked(paragraph)}</p>" for paragraph in operation["description"].split("\n\n")]
    parts += fields("Parameters", [(each["name"], each, each["schema"], each.get("required")) for each in operation.get("parameters", [])])
    for media, body in operation.get("requestBody", {}).get("content", {}).items():
        properties, required = body["schema"].get("properties", {}), body["schema"].get("required", ())
        parts += fields(f"Body, {media}", [(name, schema, schema, name in required) for name, schema in properties.items()])
    parts.append(f"<pre>{escape(curl(method, path, operation, address))}</pre>")
    statuses = operation["responses"]
    success = next((content["schema"] for content in statuses[min(statuses)].get("content", {}).values() if "schema" in content), None)
    if success:
        shape = escape(json.dumps(sketch(success), indent=2, ensure_ascii=False))
        parts.append(f"<details><summary>Response {min(statuses)}</summary><pre>{shape}</pre></details>")
    if errors := [status for status in statuses if status >= "400"]:
        parts.append(f'<p class="soft small">Errors: {", ".join(errors)}</p>')
    return "\n".join([*parts, "</section>\n"])


def fields(title: str, rows: list[tuple[str, Schema, Schema, bool | None]]) -> Iterator[str]:
    """A list of parameters or fields: name, type, default and meaning."""
    if rows:
        yield f'<h3>{escape(title)}</h3><dl class="facts">'
        for name, described, schema, required in rows:
            default = "" if required or schema.get("default") is None else f", default {json.dumps(schema['default'])}"
            meaning = f": {marked(described['description'])}" if described.get("description") else ""
            kind = json.dumps(sketch(schema), ensure_ascii=False).replace('"', "")
            yield f"<dt><code>{escape(name)}</code></dt><dd>{escape(kind + default)}{', required' if required else ''}{meaning}</dd>"
        yield "</dl>"


def curl(method: str, path: str, operation: Schema, address: str) -> str:
    """A command that calls the route with its examples."""
    parameters = [each for each in operation.get("parameters", []) if each.get("required")]
    examples = {each["name"]: example(each["schema"]) for each in parameters}
    for each in parameters:
        path = path.replace(f"{{{each['name']}}}", quote(str(examples[each["name"]])))
    query = urlencode({each["name"]: examples[each["name"]] for each in parameters if each["in"] == "query"})
    words = ["curl", "-s", *(["-X", method] if method == "DELETE" else []), address + path + (f"?{query}" if query else "")]
    if "security" in operation:
        words += ["-H", "Authorization: Bearer TOKEN"]
    for media, body in list(operation.get("requestBody", {}).get("content", {}).items())[:1]:
        data = ["-d", json.dumps(example(body["schema"]))] if media == "application/json" else ["--data-binary", f"@{examples['name']}"]
        words += ["-H", f"Content-Type: {media}", *data]
    return shlex.join(words)


def example(schema: Schema) -> Any:
    """A value that fits: the example given, or one made from the required parts."""
    if "examples" in schema:
        return schema["examples"][0]
    match schema.get("type"):
        case "object":
            return {name: example(schema["properties"][name]) for name in schema.get("required", ())}
        case "array":
            return [example(schema["items"])]
        case "integer":
            return 1
    return example(schema["anyOf"][0]) if "anyOf" in schema else "…"


def sketch(schema: Schema) -> Any:
    """The shape of a value: names of fields, and types where a value would be."""
    if "anyOf" in schema:
        kinds = [sketch(option) for option in schema["anyOf"]]
        return next((kind for kind in kinds if isinstance(kind, dict)), None) or " or ".join(map(plain, kinds))
    match schema.get("type"):
        case "object" if "properties" in schema:
            return {name: sketch(value) for name, value in schema["properties"].items()}
        case "array":
            return [sketch(item) for item in schema.get("prefixItems", [schema.get("items", {})])]
    return " or ".join(map(str, schema["enum"])) if "enum" in schema else schema.get("type", "any value")


def plain(kind: Any) -> str:
    return kind if isinstance(kind, str) else json.dumps(kind).replace('"', "")


def marked(text: str) -> str:
    """Text in which `code` is marked."""
    return "".join(f"<code>{escape(part)}</code>" if place % 2 else escape(part) for place, part in enumerate(text.split("`")))


def anchor(method: str, path: str) -> str:
    return escape(f"{method.lower()}{path}".replace("{", "").replace("}", "").replace("/", "-"))
