"""The progress of a run by the lines of one format: where it is, by which clock, at which pace.

Progress is counted in the coarsest unit that the lines determine: a share, steps, samples or tokens of the whole run; batches over all
epochs where an epoch's batches are told; else epochs, with the fraction that the batches seen in earlier epochs give.

Time comes from the best source there is (``CLOCKS``). Seconds by different clocks do not add up, so the pace begins anew when
a better clock appears.
"""

from __future__ import annotations

import math

from coadapt.prediction.remaining import eta_estimate
from coadapt.prediction.training_log.declared import Declared
from coadapt.prediction.training_log.reading import Reading

#: Sources of time, from the worst to the best.
CLOCKS = (
    "",
    "arrival of lines",
    "times of other lines",
    "samples per second in the log",
    "time per step in the log",
    "time per epoch in the log",
    "elapsed time in the log",
    "time since the start in the log",
    "timestamps",
)
ARRIVAL, ELSEWHERE, RATE, STEP, EPOCH, ELAPSED, SINCE, STAMP = range(1, 9)
_DAY_S = 86400.0
#: Between two lines: longer than any run.
_LONGEST_S = 3e9
#: A counter that falls below this share of what was done belongs to another run.
_NEW_RUN = 0.05
#: Rises in a row, without a fall, after which a time is one since the start, if it has grown by this factor.
_RISES, _GROWN = 3, 2.0
#: Observations beyond which only progress by this share counts: more say nothing more about the pace.
_ENOUGH, _LEAST_STEP = 2000, 1 / 4000
#: Of an epoch whose end was not told.
_ALMOST = 0.999


class Track:
    """Folds the readings of one format."""

    def __init__(self) -> None:
        self.pace = eta_estimate.START
        self.unit = ""
        self.done: float | None = None
        self.count = 0
        #: Readings since the last one that made no progress.
        self.validation = True
        self.clock = 0
        self.clock_s = 0.0
        self.runs = 1
        self.ended = False
        self._told_total: float | None = None
        self._epoch: float | None = None
        self._epochs: float | None = None
        #: The first epoch's number: 0 or 1.
        self._first = 1
        #: Batches of an epoch: as told, and the most seen in an epoch that ended.
        self._steps: int | None = None
        self._uneven = False
        self._most_seen, self._seen_steps = 0, 0
        self._passes = 0
        self._whole = True
        self._counts_from_0 = False
        self._stamp_s: float | None = None
        self._run_s: float | None = None
        self._seen_s: float | None = None
        self._elsewhere_s: float | None = None
        #: Last (step, elapsed seconds) of each kind of bar or batch line.
        self._bars: dict[str, tuple[int, float]] = {}
        self._last_time: float | None = None
        self._first_time = 0.0
        self._rises = self._falls = 0
        self._batch: float | None = None
        self._left_s: float | None = None
        self._timed_at: float | None = None
        self._gap = False

    # -- what others ask --------------------------------------------------------------------------------

    def total(self, declared: Declared, steps_per_epoch: float | None = None) -> float | None:
        """How many there are in all, in ``unit``; None if nothing tells."""
        told = self._total_of(declared, steps_per_epoch)
        return told if told is None or self.done is None or told >= self.done else None

    def _total_of(self, declared: Declared, steps_per_epoch: float | None) -> float | None:
        if self.unit == "share":
            return 1.0
        if self.unit == "epochs":
            return self._epochs or declared.epochs
        if self.unit == "batches":
            if self._passes:
                return None if declared.epochs is None or not self._steps else declared.epochs * self._steps
            if self._epoch is None:
                return self._told_total
            epochs = self._epochs or declared.epochs
            return None if epochs is None or self._steps is None else epochs * self._steps
        if self._told_total is not None:
            return self._told_total
        if self.unit == "steps":
            return self._total_steps(declared, steps_per_epoch)
        batch = declared.batch or self._batch
        if self.unit == "samples" and declared.steps and batch:
            return declared.steps * batch
        return None

    def _total_steps(self, declared: Declared, steps_per_epoch: float | None) -> float | None:
        if declared.steps is not None:
            return declared.steps
        if steps_per_epoch is None and declared.samples and declared.batch:
            steps_per_epoch = math.ceil(declared.samples / declared.batch)
        if declared.epochs is not None and steps_per_epoch is not None:
            return declared.epochs * steps_per_epoch
        pace = eta_estimate.seconds_per_work(self.pace) if self._left_s is not None else None
        if pace is not None and self.done is not None and self._left_s is not None:
            # the log predicts its own end: by the pace so far that tells how many there are
            return round(self.done + self._left_s / pace.value)
        return None

    @property
    def epochs_done(self) -> float | None:
        """Epochs done, with their fraction; None if the lines do not tell."""
        if self.done is None:
            return None
        if self.unit == "epochs":
            return self.done
        if self.unit == "batches" and self._steps and (self._epoch is not None or self._passes):
            return self.done / self._steps
        return None

    @property
    def whole(self) -> bool:
        """Whether the count is one over the run, not over one of several passes."""
        return self._whole

    @property
    def timed(self) -> bool:
        """Whether a line told a time of its own; one alone is no clock yet."""
        return self.clock > 0 or self._stamp_s is not None or self._run_s is not None

    @property
    def lacks_batches(self) -> bool:
        """Whether batches are counted in epochs whose length is not known yet."""
        return self.unit == "epochs" and self._most_seen > 0 and not self._seen_steps

    @property
    def lacks_batch_size(self) -> bool:
        """Whether the only clock is a number of samples per second, and the samples of a step are not known."""
        return self._lacks_batch_size

    _lacks_batch_size = False

    # -- folding ----------------------------------------------------------------------------------------

    def skip(self) -> None:
        """Lines were left out before the next reading: the time between is known only where the log's clock is absolute."""
        self._gap = self.clock < SINCE

    def take(
        self,
        reading: Reading,
        declared: Declared,
        seen_s: float | None,
        elsewhere_s: float | None,
        steps_per_epoch: float | None = None,
    ) -> None:
        """Fold a reading, seen at ``seen_s`` (where the log is being followed); ``elsewhere_s``: the clock of another track."""
        self.count += 1
        self.validation = self.validation and reading.validation
        self._batch = reading.batch or self._batch
        if reading.left_s is not None:
            self._left_s = reading.left_s
        before, unit = self.done, self.unit
        spent_s, clock = self._spent(reading, declared, seen_s, elsewhere_s)
        if not 0 <= spent_s <= _LONGEST_S:
            spent_s = 0.0  # a clock that jumped, or no time at all
        self._place(reading, declared, steps_per_epoch)
        self._remember(reading, seen_s, elsewhere_s)
        if clock < self.clock:
            spent_s = 0.0
        elif clock > self.clock:
            self.clock, self.pace = clock, eta_estimate.START
        self.clock_s += spent_s
        if reading.ended:
            self.ended = True
        if self.done is None:
            return
        if self._gap:
            self._gap = False
            self.pace = eta_estimate.resume(self.pace, self.clock_s, self.done)
            return
        if unit != self.unit:
            self.pace, before = eta_estimate.START, None
        elif before is not None and self.done < before:
            self._set_back(before)
            before = None
        self._observe(before, spent_s, reading)

    def _observe(self, before: float | None, spent_s: float, reading: Reading) -> None:
        assert self.done is not None
        pace = self.pace
        if pace is eta_estimate.START and spent_s > 0:
            # the first line already says how long it took so far
            began = before if before is not None else (0.0 if self.clock in (ELAPSED, SINCE) else None)
            if self.clock == EPOCH:
                # the time is that of the whole epoch, whatever its batch lines counted before
                began = max(self.done - self._epoch_work(), 0.0)
            if began is not None:
                pace = eta_estimate.observe(pace, self.clock_s - spent_s, min(began, self.done))
        elif pace.steps > _ENOUGH and self.done - pace.now_work < _LEAST_STEP * self.done:
            return
        config = (
            "" if self._batch is None or self.unit != "steps" or reading.batch is None else f"{self._batch:g}"
        )
        self.pace = eta_estimate.observe(pace, self.clock_s, self.done, config)

    def _epoch_work(self) -> float:
        return float(self._steps or 1) if self.unit == "batches" else 1.0

    def _set_back(self, before: float) -> None:
        assert self.done is not None
        if self.done <= _NEW_RUN * before and before > 1:
            # another run in the same file
            self.runs += 1
            self.pace = eta_estimate.START
            self.ended = False

    def _spent(
        self, r: Reading, declared: Declared, seen_s: float | None, elsewhere_s: float | None
    ) -> tuple[float, int]:
        """Seconds since the last reading, and by which clock."""
        if r.stamp_s is not None and self._stamp_s is not None:
            spent = r.stamp_s - self._stamp_s
            if spent < -_DAY_S / 2 and r.stamp_s < _DAY_S:
                spent += _DAY_S  # a clock without a date went past midnight
            return max(spent, 0.0), STAMP
        if r.stamp_s is not None:
            return 0.0, 0
        run_s = self._since(r)
        if run_s is not None:
            # the first tells how long the run took so far; one that fell is that of another run
            return (run_s if self._run_s is None or run_s < self._run_s else run_s - self._run_s), SINCE
        return self._stretch(r, declared, seen_s, elsewhere_s)

    def _stretch(
        self, r: Reading, declared: Declared, seen_s: float | None, elsewhere_s: float | None
    ) -> tuple[float, int]:
        step, elapsed = self._bars.get(r.label, (0, 0.0))
        next_epoch = r.epoch is not None and self._epoch is not None and r.epoch != self._epoch
        again = next_epoch or (r.step is not None and r.step < step)
        if r.elapsed_s is not None:
            if r.step is None and self.unit == "batches":
                return 0.0, 0  # the bar over epochs around the bar over batches
            tail_s = elapsed / step * self._tail(step) if again and step else 0.0
            return (r.elapsed_s + tail_s if again else max(r.elapsed_s - elapsed, 0.0)), ELAPSED
        epoch_s = r.epoch_s if r.epoch_s is not None else (r.time_s if r.epoch_end else None)
        if epoch_s is not None and r.epoch is not None:
            ended = r.epoch - self._timed_at if self._timed_at is not None else 1.0
            self._timed_at = r.epoch
            return epoch_s * (ended if 0 < ended < 100 else 1.0), EPOCH
        if r.span_s is not None:
            return r.span_s, STEP
        step_s, clock = self._step_s(r, declared)
        if step_s is not None and r.step is not None:
            return step_s * (r.step + self._tail(step) if again else r.step - step), clock
        if elsewhere_s is not None and self._elsewhere_s is not None:
            return max(elsewhere_s - self._elsewhere_s, 0.0), ELSEWHERE
        if seen_s is not None and self._seen_s is not None:
            return max(seen_s - self._seen_s, 0.0), ARRIVAL
        return 0.0, 0

    def _tail(self, step: int) -> int:
        """Batches of the last epoch after the last that was logged."""
        return max(self._steps - step, 0) if self._steps is not None and step > 0 else 0

    def _step_s(self, r: Reading, declared: Declared) -> tuple[float | None, int]:
        if r.step_s is not None:
            return r.step_s, STEP
        if r.time_s is not None:
            return r.time_s, STEP
        if r.samples_per_s:
            batch = r.batch or declared.batch or self._batch
            self._lacks_batch_size = batch is None
            return (None if batch is None else batch / r.samples_per_s), RATE
        return None, 0

    def _since(self, r: Reading) -> float | None:
        """Seconds since the run began; a time that only rises is one."""
        if r.run_s is not None or r.time_s is None:
            return r.run_s
        last, self._last_time = self._last_time, r.time_s
        if last is None:
            self._first_time = r.time_s
        else:
            self._rises += r.time_s > last
            self._falls += r.time_s < last
        grown = r.time_s >= _GROWN * self._first_time
        return r.time_s if self._rises >= _RISES and not self._falls and grown else None

    def _remember(self, r: Reading, seen_s: float | None, elsewhere_s: float | None) -> None:
        """The source of the next reading's time."""
        if r.step is None and not r.overall:
            self._bars = {}  # a headline: what follows it begins anew
        if r.step is not None or r.elapsed_s is not None:
            self._bars[r.label] = (r.step or 0, r.elapsed_s or 0.0)
        if r.stamp_s is not None:
            self._stamp_s = r.stamp_s
        run_s = r.run_s if r.run_s is not None else r.time_s
        if run_s is not None:
            self._run_s = run_s
        if seen_s is not None:
            self._seen_s = seen_s
        if elsewhere_s is not None:
            self._elsewhere_s = elsewhere_s

    def _place(self, r: Reading, declared: Declared, steps_per_epoch: float | None) -> None:
        """Where the run is after the reading."""
        if r.validation and not self.validation:
            return
        if r.share is not None:
            self.unit, self.done = "share", r.share
        elif r.overall and r.step is not None:
            self._overall(r)
        elif r.samples is not None or r.tokens is not None:
            self._amount(r)
        else:
            self._in_epoch(r, declared, steps_per_epoch)

    def _overall(self, r: Reading) -> None:
        assert r.step is not None
        if r.steps is not None:
            self._told_total = float(r.steps)
        self.unit, self.done = "steps", float(r.step)

    def _amount(self, r: Reading) -> None:
        amount = r.samples if r.samples is not None else r.tokens
        total = r.total_samples if r.samples is not None else r.total_tokens
        assert amount is not None
        if r.label == "start" and self.unit not in ("", "samples"):
            self.done = 0.0
            return
        if r.label == "start" and self.unit == "":
            return
        self.unit, self.done = ("samples" if r.samples is not None else "tokens"), amount
        self._told_total = total if total is not None else self._told_total

    def _in_epoch(self, r: Reading, declared: Declared, steps_per_epoch: float | None) -> None:
        if r.epoch is not None:
            if self._epoch is not None and r.epoch != self._epoch and not r.overall:
                self._seen_steps = max(self._most_seen if r.epoch > self._epoch else 0, self._seen_steps)
                self._most_seen = 0
            self._epoch = r.epoch
            if r.epoch == 0:
                self._first = 0
        if r.epochs is not None:
            # Lightning writes the number of the last epoch, counted from 0, where others write how many there are
            last_named = r.form == "progress bar" and r.step is not None and self._first == 0
            self._epochs = r.epochs + (1 if last_named else 0)
        if r.steps is not None:
            if r.epoch is not None and self._steps not in (None, r.steps):
                self._uneven = True
            self._steps = r.steps
        if r.step is None:
            self._by_epochs(r)
        elif self._epoch is None:
            self._by_passes(r)
        else:
            self._by_batches(r.step, r, declared, steps_per_epoch)

    def _by_batches(self, step: int, r: Reading, declared: Declared, steps_per_epoch: float | None) -> None:
        assert self._epoch is not None
        if step == 0:
            self._counts_from_0 = True
        self._most_seen = max(self._most_seen, step + 1)
        if self._steps is not None and not self._uneven:
            self.unit, self.done = "batches", (self._epoch - self._first) * self._steps + step
            return
        batches = self._steps or steps_per_epoch or self._seen_steps
        if not batches and declared.samples and declared.batch:
            batches = declared.samples / declared.batch
        done = self._epoch - self._first
        if self.unit == "epochs" and self.done is not None and not batches:
            done = max(done, self.done if self.done < done + 1 else done)
        self.unit = "epochs"
        # the batches seen in earlier epochs may be fewer than there are: only a line about its end ends an epoch
        self.done = done + (min((step + 1) / batches, _ALMOST) if batches else 0.0)

    def _by_epochs(self, r: Reading) -> None:
        """A line about an epoch: with batch lines it only names the epoch; without, epochs are the progress."""
        if self.unit in ("steps", "samples", "tokens", "share") or r.epoch is None:
            return
        if r.overall:  # epochs as they pass: 0.5, or a bar's count
            if self.unit != "batches":
                self.unit, self.done = "epochs", r.epoch
            return
        # a line that tells results stands at the end of its epoch, a headline at its beginning
        at_end = r.epoch_end or bool(r.metrics)
        done = r.epoch - self._first + (1 if at_end else 0)
        if self.unit == "batches":
            if r.epoch_end and self._steps is not None and r.epoch_s is not None:
                self.done = done * self._steps
            return
        if self.unit == "epochs" and self.done is not None and not at_end and done <= self.done < done + 1:
            return
        self.unit, self.done = "epochs", done

    def _by_passes(self, r: Reading) -> None:
        """A bar without an epoch: the whole run, or one pass of several once it has begun anew."""
        assert r.step is not None
        steps = r.steps or 0
        if r.step < self._bars.get(r.label, (0, 0.0))[0]:
            if steps == self._told_total or self._passes:
                self._passes += 1
                self._whole = False
            elif self.done:
                # of another length: another run in the same file
                self.runs, self.pace = self.runs + 1, eta_estimate.START
        self._told_total = float(steps) if steps and not self._passes else None
        self.unit, self.done = "batches", float(self._passes * steps + r.step)
