"""From bytes to what a route takes: unknown fields refused by name, and every fault said in one line."""

from __future__ import annotations

import difflib
from functools import cache
from typing import Any, TypeVar, get_args, get_type_hints

import msgspec

from coadapt.server.problems import Refused

_T = TypeVar("_T")


def decode_body(data: bytes, kind: type[_T], *, lenient: bool = False) -> _T:
    """The request in ``data``. ``lenient``: fields of a newer agent are passed over."""
    if not data:
        raise Refused(400, "the request has no body; send JSON")
    try:
        plain = msgspec.json.decode(data)
        if not lenient:
            _refuse_unknown(plain, kind, "")
        return msgspec.convert(plain, kind)
    except msgspec.ValidationError as error:
        raise Refused(422, str(error)[:300]) from None
    except msgspec.DecodeError as error:
        raise Refused(400, f"the body is not JSON: {str(error)[:200]}") from None
    except UnicodeDecodeError:
        raise Refused(400, "the body is not JSON: it is not UTF-8") from None
    except RecursionError:
        raise Refused(400, "the body is nested too deeply") from None


def decode_query(items: list[tuple[str, str]], kind: type[_T]) -> _T:
    """The query's parameters, each once at most."""
    given: dict[str, str] = {}
    for name, value in items:
        if name in given:
            raise Refused(400, f"the parameter {name[:40]!r} is given twice")
        given[name] = value
    _refuse_unknown(given, kind, "")
    try:
        return msgspec.convert(given, kind, strict=False)
    except (msgspec.ValidationError, OverflowError) as error:
        raise Refused(400, str(error)[:300]) from None


def _refuse_unknown(value: Any, kind: Any, where: str) -> None:
    """Refused for a key that a struct does not have, at any depth."""
    if isinstance(value, dict) and isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        fields = _fields(kind)
        for key, inner in value.items():
            if key not in fields:
                raise Refused(422, _unknown(where + key, key, fields))
            _refuse_unknown(inner, fields[key], f"{where}{key}.")
    elif isinstance(value, list | dict):
        for inner_kind in get_args(kind):
            for inner in value if isinstance(value, list) else ():
                _refuse_unknown(inner, inner_kind, where)
            if isinstance(value, dict):
                _refuse_unknown(value, inner_kind, where)


@cache
def _fields(kind: type[msgspec.Struct]) -> dict[str, Any]:
    return get_type_hints(kind)


def _unknown(path: str, key: str, fields: dict[str, Any]) -> str:
    close = difflib.get_close_matches(key[:80], fields, n=1)
    hint = f"did you mean {close[0]!r}?" if close else f"known: {', '.join(sorted(fields))}"
    return f"unknown field {path[:100]!r}; {hint}"
