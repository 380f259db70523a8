from __future__ import annotations

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coadapt.cli import terminal


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_table_aligns_names_left_and_numbers_right() -> None:
    assert terminal.table(["name", "JCT"], [["fifo", "2h 13m"], ["pollux", "9m"]]) == [
        "  name       JCT",
        "  fifo    2h 13m",
        "  pollux      9m",
    ]


def test_table_leaves_out_last_columns_on_a_narrow_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdout", _Terminal())
    monkeypatch.setenv("COLUMNS", "20")
    lines = terminal.table(["name", "first", "second", "third"], [["a", "1", "2", "3"]])
    assert lines[0] == "  name  first"
    assert lines[-1] == "  (terminal too narrow for: second, third)"
    monkeypatch.setattr("sys.stdout", io.StringIO())
    assert "third" in terminal.table(["name", "first", "second", "third"], [["a", "1", "2", "3"]])[0]


def test_colour_is_for_terminals_that_want_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    assert terminal.wants_colour(_Terminal())
    assert not terminal.wants_colour(io.StringIO())
    monkeypatch.setenv("NO_COLOR", "1")
    assert not terminal.wants_colour(_Terminal())


@pytest.mark.parametrize(("value", "text"), [(0.034, "0.03"), (2.5, "2.50"), (1234.4, "1,234")])
def test_decimal_never_has_an_exponent(value: float, text: str) -> None:
    assert terminal.decimal(value) == text


@pytest.mark.parametrize(
    ("written", "shown"),
    [
        ("plain \tä→😀\r\n", "plain \tä→😀\r\n"),
        ("\x1b[31mred\x1b[0m", "red"),
        ("\x1b]0;title\x07text", "text"),
        ("\x1b]8;;http://x\x1b\\link", "link"),
        ("\x1b[2J\x1b[H\x1b[?1049hgone", "gone"),
        ("\x1bPq#0\x1b\\after", "after"),
        ("\x1bcreset", "reset"),
        ("\x1b]0;never closed\nnext line", "\nnext line"),
        ("a\x08\x08b\x07\x9b31mc", "ab31mc"),
        ("evil\u202egpj.exe", "evilgpj.exe"),
        ("\u200fturned\u061c", "turned"),
    ],
)
def test_text_of_others_cannot_command_the_terminal(written: str, shown: str) -> None:
    assert terminal.without_escapes(written) == shown


@given(st.text(st.sampled_from("\x1b[]P;0m?\\\x07\x9b\u202eab\n\r\t")), st.integers(min_value=0))
def test_sequence_that_two_readings_cut_commands_nothing(written: str, cut: int) -> None:
    """As ``logs -f`` shows it: whatever is cut where, no character is left that a terminal obeys."""
    cut %= len(written) + 1
    shown = terminal.without_escapes(written[:cut]) + terminal.without_escapes(written[cut:])
    assert set(shown) <= set("[]P;0m?\\ab\n\r\t")
