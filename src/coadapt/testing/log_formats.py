"""Conformance suite of log formats: subclass it, implement ``make`` and ``sample``, run pytest."""

from __future__ import annotations

import random
from collections.abc import Sequence

from coadapt.prediction.training_log import LogFormat, LogReader, Reading, segments

#: Numbers of a reading that must be finite and not negative.
_NUMBERS = (
    "epoch",
    "epochs",
    "step",
    "steps",
    "samples",
    "tokens",
    "elapsed_s",
    "run_s",
    "epoch_s",
    "step_s",
    "left_s",
    "batch",
)


class LogFormatConformance:
    """Subclass and implement ``make`` and ``sample``."""

    def make(self) -> LogFormat:
        """A new format, which has read nothing yet."""
        raise NotImplementedError

    def sample(self) -> str:
        """A log in this format, with at least two lines of progress."""
        raise NotImplementedError

    def readings(self, text: str) -> list[Reading]:
        """The readings of a text, as the reader would ask for them."""
        made = self.make()
        lines = [
            part for part in segments(text) if not made.marks or any(mark in part for mark in made.marks)
        ]
        return [found for found in map(made.parse, lines) if found is not None]

    def test_says_what_it_is(self) -> None:
        made = self.make()
        assert made.name
        assert all(isinstance(mark, str) and mark for mark in made.marks)

    def test_reads_progress_in_its_sample(self) -> None:
        found = self.readings(self.sample())
        places = {(each.share, each.epoch, each.step, each.samples, each.tokens) for each in found}
        assert len(places - {(None,) * 5}) >= 2

    def test_numbers_are_finite_and_not_negative(self) -> None:
        for each in self.readings(self.sample()):
            for name in _NUMBERS:
                value = getattr(each, name)
                assert value is None or 0 <= value < float("inf"), name

    def test_the_reader_follows_the_sample(self) -> None:
        reader = LogReader(first=[self.make()])
        reader.feed(self.sample())
        found = reader.progress()
        assert found is not None
        assert found.done > 0
        assert found.total is None or found.total >= found.done

    def test_same_lines_same_readings(self) -> None:
        assert self.readings(self.sample()) == self.readings(self.sample())

    def test_mutilated_lines_never_raise(self) -> None:
        for text in mutilated(self.sample(), count=60, seed=1):
            self.readings(text)
            reader = LogReader(first=[self.make()])
            reader.feed(text)
            reader.progress()


def mutilated(text: str, *, count: int, seed: int) -> Sequence[str]:
    """Copies of a text with parts cut, repeated, swapped and overwritten; the same for the same seed."""
    rng = random.Random(seed)
    found = []
    for _ in range(count):
        copy = text
        for _ in range(rng.randint(1, 6)):
            at = rng.randrange(len(copy) + 1)
            size = rng.choice((1, 3, 10, 100))
            how = rng.randrange(6)
            if how == 0:
                copy = copy[:at] + copy[at + size :]
            elif how == 1:
                copy = (
                    copy[:at]
                    + "".join(chr(rng.choice((0, 9, 10, 13, 27, 48, 57, 233, 0x2588))) for _ in range(size))
                    + copy[at:]
                )
            elif how == 2:
                copy = (
                    copy[:at]
                    + rng.choice(
                        ("99999999999999999999", "-1", "nan", "inf", "1e309", "0", "/", ":", "{", "%|")
                    )
                    + copy[at:]
                )
            elif how == 3:
                copy = copy[:at] + copy[at : at + size] * 3 + copy[at + size :]
            elif how == 4:
                lines = copy.split("\n")
                rng.shuffle(lines)
                copy = "\n".join(lines)
            else:
                copy = copy.replace(str(rng.randrange(10)), str(rng.randrange(10)))
        found.append(copy)
    return found
