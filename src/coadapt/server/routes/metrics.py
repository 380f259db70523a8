"""The Prometheus metrics at ``/metrics``: the present state of the cluster, and durations of requests, in base units."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import accumulate
from statistics import median

from prometheus_client import CollectorRegistry, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from starlette.responses import Response

from coadapt.model import JobStarted, Record
from coadapt.model.snapshot import Phase, ShownState
from coadapt.runtime.controller import DECISION_S
from coadapt.server.http.routing import Call, Route
from coadapt.server.routes.cluster import holding
from coadapt.server.services import Services

_WAITS_S = (1, 10, 60, 300, 1800, 3600, 4 * 3600, 24 * 3600, 7 * 24 * 3600)
#: Jobs whose predictions are judged: the newest.
_MOST_JUDGED = 200
_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
_REQUESTS_S = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 3, 10)


class Metrics:
    """A registry of its own; ``note`` is told every record, ``observe`` every request."""

    def __init__(self, services: Callable[[], Services]) -> None:
        self._services = services
        self._kept: tuple[object, list[Metric]] = (None, [])
        self.registry = CollectorRegistry()
        self.registry.register(self)  # see collect
        self._requests = Histogram(
            "coadapt_request_duration_seconds",
            "Time from a request's head to the end of its answer.",
            ("method", "route", "status"),
            buckets=_REQUESTS_S,
            registry=self.registry,
        )
        self._waits = Histogram(
            "coadapt_queue_wait_seconds",
            "Time from a job's submission to its first start.",
            buckets=_WAITS_S,
            registry=self.registry,
        )

    def observe(self, method: str, route: str, status: int, seconds: float) -> None:
        """Records the duration of an answered request.

        Unknown methods and paths share one label, because their number is unlimited.

        Args:
            method: Method of the request.
            route: Path of the matched route; empty if none matched.
            status: Status of the answer.
            seconds: Duration of the request.
        """
        if route != "/v1/stream":  # as long as somebody listens
            known = method if method in _METHODS else "other"
            self._requests.labels(known if route else "", route, str(status)).observe(seconds)

    def note(self, record: Record) -> None:
        """Counts the waiting time of a job, when a record says that it has started for the first time."""
        event = record.event
        if isinstance(event, JobStarted) and event.attempt == 1:
            job = self._services().follower.state.jobs.get(event.job)
            if job is not None and job.started_at is not None:
                self._waits.observe(max(job.started_at - job.submitted_at, 0.0))

    def page(self, call: Call) -> Response:
        """``GET /metrics``."""
        call.services.follower.refresh()
        return Response(generate_latest(self.registry), media_type=CONTENT_TYPE_LATEST)

    def collect(self) -> Iterator[Metric]:
        """Gauges, made when they are asked for; called by the registry."""
        services = self._services()
        follower = services.follower
        if self._kept[0] != follower.position:
            self._kept = follower.position, [*self._of_state(services)]
        yield from self._kept[1]
        yield from self._decided(services)
        age_s = services.controller_age_s()
        yield GaugeMetricFamily(
            "coadapt_controller_lease_age_seconds",
            "Time since the controller renewed its lease; NaN without one.",
            value=float("nan") if age_s is None else age_s,
        )
        yield GaugeMetricFamily(
            "coadapt_log_seq", "Sequence number of the newest record that was read.", value=follower.state.seq
        )

    def _of_state(self, services: Services) -> Iterator[Metric]:
        """What stays as it is until something happens."""
        states = GaugeMetricFamily("coadapt_jobs", "Jobs by state.", labels=["state"])
        for state in ShownState:
            states.add_metric([state.lower()], services.follower.index.count(state))
        yield states
        yield GaugeMetricFamily(
            "coadapt_jobs_quarantined",
            "Jobs that are left out of decisions.",
            value=sum(job.quarantine is not None for job in services.follower.state.jobs.values()),
        )
        yield from self._gpus(services)
        yield from self._progress(services)
        yield from self._predictions(services)

    def _decided(self, services: Services) -> Iterator[Metric]:
        """Since the store was made: both outlive controller and API."""
        yield CounterMetricFamily(
            "coadapt_decisions", "Decisions made.", value=services.follower.state.decisions
        )
        status = services.controller_status()
        yield CounterMetricFamily(
            "coadapt_snapshot_failures", "Snapshots that could not be saved.", value=status.snapshot_failures
        )
        counts = zip([*map(str, DECISION_S), "+Inf"], accumulate(status.decisions), strict=True)
        yield HistogramMetricFamily(
            "coadapt_decision_duration_seconds",
            "Time of a decision: curves, policy, placer and checks together.",
            buckets=list(counts),
            sum_value=status.decision_s,
        )

    def _gpus(self, services: Services) -> Iterator[Metric]:
        families = {
            "total": GaugeMetricFamily(
                "coadapt_gpus", "GPUs of nodes that take replicas.", labels=["gpu_type"]
            ),
            "promised": GaugeMetricFamily(
                "coadapt_gpus_allocated", "GPUs that decisions have given to jobs.", labels=["gpu_type"]
            ),
            "held": GaugeMetricFamily(
                "coadapt_gpus_used", "GPUs that processes of jobs hold.", labels=["gpu_type"]
            ),
        }
        counts: dict[tuple[str, str], int] = {}
        for node in services.follower.state.all_nodes.values():
            kind = node.node.gpu_type
            for name, gpus in (
                ("total", node.node.gpus if node.open else 0),
                ("promised", node.promised),
                ("held", node.held),
            ):
                counts[name, kind] = counts.get((name, kind), 0) + gpus
        for (name, kind), gpus in counts.items():
            families[name].add_metric([kind], gpus)
        yield from families.values()

    def _predictions(self, services: Services) -> Iterator[Metric]:
        """First forecasts of the newest jobs that succeeded, against what came."""
        errors: list[float] = []
        within = 0
        for name in reversed(services.follower.index.names(Phase.SUCCEEDED)[-_MOST_JUDGED:]):
            job = services.follower.state.jobs[name]
            said, at = job.first_forecast, job.first_forecast_at
            if said is None or at is None or job.finished_at is None or job.finished_at <= at:
                continue
            actual_s = job.finished_at - at
            errors.append(abs(said.left_s / actual_s - 1))
            within += said.low_s <= actual_s and (said.high_s is None or actual_s <= said.high_s)
        yield GaugeMetricFamily(
            "coadapt_prediction_error_ratio",
            "Median of |predicted / actual - 1| of the time left, by the first forecast of recent jobs; NaN without any.",
            value=median(errors) if errors else float("nan"),
        )
        yield GaugeMetricFamily(
            "coadapt_prediction_within_interval_ratio",
            "Share of recent jobs that ended within the 80% interval of their first forecast; NaN without any.",
            value=within / len(errors) if errors else float("nan"),
        )

    def _progress(self, services: Services) -> Iterator[Metric]:
        """Goodput is useful examples per second; the share of held GPU time in which jobs train has a name of its own."""
        follower = services.follower
        goodput, held, training = 0.0, 0, 0
        for job in holding(follower):
            goodput += follower.standings.of(follower.state, job, follower.now).goodput or 0.0
            held += job.held_gpus
            training += job.held_gpus if job.phase is Phase.RUNNING else 0
        yield GaugeMetricFamily(
            "coadapt_goodput_examples_per_second",
            "Useful examples per second over all jobs, as last measured: throughput times statistical efficiency.",
            value=goodput,
        )
        yield GaugeMetricFamily(
            "coadapt_productive_share",
            "Share of held GPUs whose jobs train, and neither start nor resize nor stop; NaN where none is held.",
            value=training / held if held else float("nan"),
        )


def routes(metrics: Metrics) -> tuple[Route, ...]:
    """The page."""
    return (Route("GET", "/metrics", metrics.page, None, "open", media=CONTENT_TYPE_LATEST),)
