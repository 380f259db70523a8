"""Policies and clusters against each other: the runs, their ratios, and files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from coadapt.cli.as_recorded import RecordedRun
from coadapt.cli.output import fresh_directory
from coadapt.cli.parallel import Outcome
from coadapt.cli.recorded_check import RecordedCheck
from coadapt.cli.result import data_frame, plain, write_csv
from coadapt.model import format_cluster
from coadapt.report import Column, LowerBound, Ratio, Run, Summary, bound_sentence, compare, render

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Finished runs. A name stands for one policy on one cluster, run once per seed."""

    source: str
    outcomes: Sequence[Outcome]
    #: The run that ratios are relative to.
    reference: str
    #: The run that the trace recorded, and its replay on the first cluster.
    recorded: RecordedRun | None = None
    recorded_check: RecordedCheck | None = None
    notes: Sequence[str] = ()
    #: Lower bounds on the average JCT, by cluster in shorthand and number of jobs; see ``cli.bounds``.
    bounds: Mapping[tuple[str, int], LowerBound] = field(default_factory=dict)

    @property
    def names(self) -> list[str]:
        """Every run's name, in order, the reference where it was asked for."""
        return list(dict.fromkeys(outcome.case.name for outcome in self.outcomes))

    @property
    def recorded_name(self) -> str:
        """What the recorded run is called beside the others; its replay may be one of them."""
        return "recorded" if "recorded" not in self.names else "as recorded"

    @property
    def ratios(self) -> dict[str, Ratio]:
        """Average JCT relative to the reference's, with paired 95% intervals over jobs."""
        runs: dict[str, list[Mapping[str, float]]] = {name: [] for name in self.names}
        for outcome in self.outcomes:
            runs[outcome.case.name].append(outcome.jct_s)
        if self.recorded is not None and self.recorded.jct_s:
            runs[self.recorded_name] = [self.recorded.jct_s]
        return compare(runs, self.reference)

    @property
    def runs(self) -> list[dict[str, Any]]:
        """One plain row per run and seed."""
        return [
            {
                "name": outcome.case.name,
                "cluster": format_cluster(outcome.case.cluster),
                "seed": outcome.case.seed,
                **plain(outcome.summary),
                **({"vs_bound": self._vs_bound(outcome, outcome.summary)} if self.bounds else {}),
            }
            for outcome in self.outcomes
        ]

    def vs_bound(self, name: str) -> float | None:
        """A run's average JCT to its lower bound; None where there is none, or where jobs did not finish."""
        outcome = next(outcome for outcome in self.outcomes if outcome.case.name == name)
        return self._vs_bound(outcome, self.mean(name))

    def _vs_bound(self, outcome: Outcome, numbers: Summary) -> float | None:
        bound = self.bounds.get((format_cluster(outcome.case.cluster), outcome.summary.num_jobs))
        if bound is None or numbers.num_unfinished or numbers.avg_jct_s is None:
            return None
        return numbers.avg_jct_s / bound.avg_jct_s

    @property
    def bound_sentences(self) -> list[str]:
        """For each bound, what it says about the best run that it holds for."""
        sentences = []
        for (cluster, jobs), bound in self.bounds.items():
            ratios = {
                outcome.case.name: ratio
                for outcome in self.outcomes
                if (format_cluster(outcome.case.cluster), outcome.summary.num_jobs) == (cluster, jobs)
                and (ratio := self.vs_bound(outcome.case.name)) is not None
            }
            if ratios:
                best = min(ratios, key=lambda name: ratios[name])
                sentences.append(bound_sentence(bound, best, ratios[best] * bound.avg_jct_s))
        return sentences

    def mean(self, name: str) -> Summary:
        """The numbers of a run, averaged over its seeds."""
        rows = [plain(outcome.summary) for outcome in self.outcomes if outcome.case.name == name]
        mean: dict[str, Any] = {}
        for key in rows[0]:
            values = [row[key] for row in rows if row[key] is not None]
            mean[key] = sum(values) / len(values) if values else None
        return Summary(**mean)

    def plain(self) -> dict[str, Any]:
        """Everything as plain data: what ``--json`` prints."""
        ratios = {name: msgspec.structs.asdict(ratio) for name, ratio in self.ratios.items()}
        check = None if self.recorded_check is None else msgspec.structs.asdict(self.recorded_check)
        return {
            "trace": self.source,
            "reference": self.reference,
            "runs": self.runs,
            "ratios": ratios,
            "recorded": None if self.recorded is None else self.recorded.plain(),
            "recorded_check": check,
            "bounds": [
                {"cluster": cluster, **msgspec.structs.asdict(bound), "gap": bound.gap}
                for (cluster, _), bound in self.bounds.items()
            ],
        }

    def to_pandas(self) -> pd.DataFrame:
        """``runs`` as a data frame; needs pandas."""
        return data_frame(self.runs)

    def write(self, directory: str | Path, *, force: bool = False) -> Path:
        """Writes compare.json, runs.csv and report.html."""
        with fresh_directory(Path(directory), force=force, by="force=True") as staging:
            self.write_files(staging)
        return Path(directory)

    def write_files(self, directory: Path) -> None:
        """The files themselves."""
        encoded = msgspec.json.format(msgspec.json.encode(self.plain()), indent=2)
        (directory / "compare.json").write_bytes(encoded + b"\n")
        write_csv(directory / "runs.csv", self.runs)
        (directory / "report.html").write_text(self.page(), encoding="utf-8")

    @property
    def columns(self) -> list[Column]:
        """The table: the recorded run, then every run, averaged over its seeds, the reference first."""
        names = sorted(self.names, key=lambda name: name != self.reference)
        columns = [
            Column(name, {**plain(self.mean(name)), "vs_bound": self.vs_bound(name)}, number)
            for number, name in enumerate(names)
        ]
        if self.recorded is not None:
            columns.insert(0, Column(self.recorded_name, self.recorded.plain()))
        return columns

    def page(self) -> str:
        """The report. Its charts show the first seed, its table the means over all."""
        results = [outcome.result for outcome in self.outcomes if outcome.result is not None]
        # the report takes its first run as the reference
        results.sort(key=lambda result: result.name != self.reference)
        shown = [
            Run(result.name, result.history, result.summary, result.rho, format_cluster(result.cluster))
            for result in results
        ]
        notes = list(self.notes)
        seeds = len({outcome.case.seed for outcome in self.outcomes})
        if seeds > 1:
            notes.append(
                f"The table shows means over {seeds} seeds; charts and jobs are those of seed {results[0].seed}."
            )
        return render(
            shown,
            title=f"Policies compared: {Path(self.source).name}",
            notes=notes,
            columns=self.columns,
            ratios=self.ratios if len(self.columns) > 1 else {},
            recorded="" if self.recorded_check is None else self.recorded_check.sentence,
            bound=" ".join(self.bound_sentences),
        )
