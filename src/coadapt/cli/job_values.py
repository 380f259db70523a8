"""Values of a specification, checked by name and kind; whatever is wrong is one line that says where."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from coadapt.errors import InputError


class Values:
    """A mapping whose keys are ``keys``, with mappings ``below`` some of them."""

    def __init__(
        self,
        given: Mapping[str, Any],
        where: str,
        keys: Sequence[str],
        below: Mapping[str, Sequence[str]] | None = None,
        prefix: str = "",
    ) -> None:
        self.given, self.where, self._prefix, self._below = given, where, prefix, below or {}
        for key in given:
            if key not in keys:
                close = difflib.get_close_matches(str(key), keys, n=1)
                hint = f"did you mean {close[0]!r}?" if close else f"known: {', '.join(keys)}"
                raise InputError(f"{where}: unknown key {prefix + str(key)[:60]!r}; {hint}")

    def below(self, key: str) -> Values:
        """The mapping at ``key``, empty where there is none."""
        value = self.given.get(key)
        if value is None:
            value = {}
        if not isinstance(value, Mapping):
            raise self._wrong(key, f"a mapping with {', '.join(self._below[key])}", value)
        return Values(value, self.where, self._below[key], prefix=f"{key}.")

    def text(self, key: str) -> str | None:
        """A text; a number stands for itself."""
        value = self.given.get(key)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, str | int | float):
            raise self._wrong(key, "a text", value)
        return str(value)

    def number(self, key: str, *, least: float | None = None, above: float | None = None) -> float | None:
        """A finite number."""
        value = self.given.get(key)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self._wrong(key, "a number", value)
        if (
            not math.isfinite(value)
            or (least is not None and value < least)
            or (above is not None and value <= above)
        ):
            bound = (
                f" of {least:g} or more"
                if least is not None
                else f" above {above:g}"
                if above is not None
                else ""
            )
            raise self._wrong(key, f"a number{bound}", value)
        return float(value)

    def whole(self, key: str, *, least: int, most: int = 10**15) -> int | None:
        """A whole number within bounds."""
        value = self.number(key)
        if value is None:
            return None
        if value != int(value) or not least <= value <= most:
            bound = f"from {least} to {most}" if most < 10**15 else f"of {least} or more"
            raise self._wrong(key, f"a whole number {bound}", self.given[key])
        return int(value)

    def flag(self, key: str) -> bool | None:
        """true or false."""
        value = self.given.get(key)
        if value is None or isinstance(value, bool):
            return value
        raise self._wrong(key, "true or false", value)

    def texts(self, key: str) -> list[str]:
        """A list of texts; one alone is a list of one."""
        value = self.given.get(key)
        if value is None:
            return []
        found = value if isinstance(value, list | tuple) else [value]
        if not all(isinstance(each, str) for each in found):
            raise self._wrong(key, "a name, or a list of names", value)
        return list(found)

    def strings(self, key: str) -> dict[str, str]:
        """Names and values of an environment."""
        value = self.given.get(key)
        if value is None:
            return {}
        if not isinstance(value, Mapping):
            raise self._wrong(key, "a mapping of names to values", value)
        found = {}
        for name, each in value.items():
            if not re.fullmatch(r"[A-Za-z_]\w*", str(name)):
                raise InputError(f"{self.where}: {name!r} in {key!r} is not the name of a variable")
            if isinstance(each, bool | Mapping | list) or "\0" in str(each):
                raise InputError(f"{self.where}: the value of {name!r} in {key!r} must be a text")
            found[str(name)] = "" if each is None else str(each)
        return found

    def patterns(self, key: str) -> dict[str, str]:
        """Names of metrics and regular expressions with one group."""
        found = self.strings(key)
        for name, pattern in found.items():
            try:
                groups = re.compile(pattern).groups
            except re.error as error:
                raise InputError(
                    f"{self.where}: the pattern of {name!r} in {key!r} is wrong: {error}"
                ) from None
            if groups != 1:
                raise InputError(
                    f"{self.where}: the pattern of {name!r} in {key!r} needs one group in brackets, "
                    rf"for example 'accuracy: ([\d.]+)'"
                )
        return found

    def _wrong(self, key: str, expected: str, value: object) -> InputError:
        shown = repr(value)
        shown = shown if len(shown) <= 60 else shown[:57] + "..."
        return InputError(f"{self.where}: {self._prefix + key!r} must be {expected}, not {shown}")
