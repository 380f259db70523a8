"""The OpenAPI 3.1 document of the API, generated from the routes and from the structs of requests and answers."""

from __future__ import annotations

import re
from collections.abc import Sequence
from importlib.metadata import version
from typing import Any

import msgspec

from coadapt.server.http.problems import JSON
from coadapt.server.http.routing import NoQuery, Route
from coadapt.server.roles import DESCRIPTIONS
from coadapt.wire.api import Problem

_VERSION = version("coadapt")
_REF = "#/components/schemas/{name}"
_PARAMETER = re.compile(r"\{(\w+)\}")
#: Every status that is no success is a Problem.
_PROBLEMS = ("400", "401", "403", "404", "408", "409", "413", "415", "421", "422", "429", "503")


def describe(routes: Sequence[Route]) -> dict[str, Any]:
    """Returns the whole document."""
    kinds = [Problem, *(kind for route in routes for kind in (route.body, route.answer) if kind is not None)]
    _, components = msgspec.json.schema_components(list(dict.fromkeys(kinds)), ref_template=_REF)
    paths: dict[str, Any] = {}
    for route in routes:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Coadapt",
            "version": _VERSION,
            "description": "Jobs, nodes and predictions of one cluster.",
        },
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }


def _operation(route: Route) -> dict[str, Any]:
    said = (route.handle.__doc__ or "").strip()
    operation: dict[str, Any] = {
        "operationId": re.sub(r"\W+", "_", f"{route.method} {route.path}").strip("_").lower(),
        "description": f"{said} {DESCRIPTIONS[route.who]}".strip(),
        "parameters": [*_path_parameters(route), *_query_parameters(route)],
        "responses": {
            str(route.status): {"description": "Done.", "content": _answer(route)},
            **{status: _problem() for status in _PROBLEMS},
        },
        "security": [] if route.who == "open" else [{"token": []}],
    }
    if route.path == "/v1/jobs" and route.method == "POST":
        operation["parameters"].append(
            {
                "name": "Idempotency-Key",
                "in": "header",
                "schema": {"type": "string", "pattern": "^[A-Za-z0-9_.:-]{1,128}$"},
            }
        )
    if route.body is not None:
        operation["requestBody"] = {
            "required": True,
            "content": {route.media: {"schema": _schema(route.body)}},
        }
    elif route.method == "PUT":
        operation["requestBody"] = {
            "required": True,
            "content": {route.media: {"schema": {"type": "string", "format": "binary"}}},
        }
    return operation


def _answer(route: Route) -> dict[str, Any]:
    if route.answer is None:
        return {route.media: {"schema": {"type": "string"}}}
    return {JSON: {"schema": _schema(route.answer)}}


def _problem() -> dict[str, Any]:
    return {"description": "Not carried out; why.", "content": {JSON: {"schema": _schema(Problem)}}}


def _schema(kind: type) -> dict[str, str]:
    return {"$ref": _REF.format(name=kind.__name__)}


def _path_parameters(route: Route) -> list[dict[str, Any]]:
    return [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
        for name in _PARAMETER.findall(route.path)
    ]


def _query_parameters(route: Route) -> list[dict[str, Any]]:
    if route.query is NoQuery:
        return []
    (schema,), components = msgspec.json.schema_components([route.query], ref_template=_REF)
    properties = components[route.query.__name__]["properties"] if "$ref" in schema else schema["properties"]
    return [
        {"name": name, "in": "query", "required": False, "schema": _without_default(inner)}
        for name, inner in properties.items()
    ]


def _without_default(schema: dict[str, Any]) -> dict[str, Any]:
    """In a query nothing is null: a parameter that is not given is left out."""
    inner = {key: value for key, value in schema.items() if key != "default"}
    if "anyOf" in inner:
        (inner,) = (each for each in inner["anyOf"] if each != {"type": "null"})
    return inner
