"""The services that routes use: opened once, in the event loop's own thread, and closed with it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from typing import TypeVar

import msgspec

from coadapt.errors import InputError
from coadapt.executors import find_executor
from coadapt.executors.node.accounts import account_of
from coadapt.explain.explanation import short
from coadapt.model import AnyEvent, JobSpec, QuotaSet, Record, SpecChanged
from coadapt.runtime.controller import ControllerStatus, read_status
from coadapt.runtime.loop import restore
from coadapt.runtime.ports import EventLog, JobFiles
from coadapt.scheduler.state import saved_state
from coadapt.scheduler.state.job_state import JobState
from coadapt.scheduler.state.state import SchedulerState
from coadapt.server import audit_trail
from coadapt.server.audit_trail import AuditTrail
from coadapt.server.callers import Caller, Callers, Sessions
from coadapt.server.http.problems import Refused, not_found, unavailable
from coadapt.server.http.rate_limit import Limits
from coadapt.server.inbox_writer import Entry, KeyReusedError, Maker, Writer
from coadapt.server.job_rows import Lines
from coadapt.server.log_follower import Follower, History
from coadapt.server.lookahead_process import Forward, Outlooks
from coadapt.server.proxy import Proxy
from coadapt.server.roles import sees_all
from coadapt.server.store_watch import StoreWatch
from coadapt.server.webhooks import Webhooks
from coadapt.spec.job_rules import Surroundings, check_spec
from coadapt.spec.prices import read_prices
from coadapt.store import Store, open_store
from coadapt.store.audit_log import Attribution, AuditLog
from coadapt.store.home import Home, StoredCode, secret_of
from coadapt.store.inbox import Answered, Asked
from coadapt.store.token_table import Token, TokenStore
from coadapt.wire.serve_options import ServeOptions

_T = TypeVar("_T")
#: Requests per second without a good token from one address, and how many may come at once.
STRANGERS = (20.0, 200.0)
#: Seconds for which it is known how old the controller's lease is.
_LEASE_S = 0.5
#: Seconds that the API waits for a store: nobody is answered meanwhile.
_ANSWER_S = 3.0


class Services:
    """The services of one API process."""

    def __init__(
        self,
        home: Home,
        options: ServeOptions,
        *,
        clock: Callable[[], float] = time.time,
        advanced: Callable[[], None] = lambda: None,
    ) -> None:
        self.home, self.options, self.clock = home, options, clock
        self.store: Store = open_store(home.store(options), answer_s=_ANSWER_S)
        self.log = self.store.log()
        self._tokens = self.store.tokens()
        with closing(self.store.inbox()) as inbox:
            waiting = inbox.waiting()
        #: Reads a store on a server; None: the store is a file.
        self.watch = StoreWatch(self.store, self.log) if "://" in self.store.where else None
        self.follower = Follower(
            self.watch or self.log, newest_state(self.log), waiting, clock=clock, advanced=advanced
        )
        self.history = History(self._records)
        self.code = StoredCode(home.code)
        self.files: JobFiles = find_executor(options.executor).job_files(home, options)
        #: Whether agents on other machines fetch code from here.
        self.ships_code = options.executor != "local"
        self.prices = read_prices(options.prices)
        self.forward = Forward(home.path)
        self.outlooks = Outlooks(self.forward)
        self.lines = Lines(self.follower, self.prices, self.outlooks)
        self.callers = Callers(self._load_tokens, in_memory=self.watch is not None, clock=clock)
        self.proxy = Proxy(
            options, secret_of(home.path / "proxy_secret").hex() if options.trust_proxy else ""
        )
        self.sessions = Sessions(secret_of(home.path / "session_key"), self.callers)
        self.limits = Limits(options.requests_per_s, options.burst)
        #: Rate limit of requests without a valid token: lower, to prevent guessing.
        self.strangers = Limits(*STRANGERS)
        self.job_key = secret_of(home.path / "job_key")
        self.writer = Writer(self.store.inbox)
        keep_s = None if options.audit_days is None else 86400.0 * options.audit_days
        self.audit = AuditTrail(self.store.audit, keep_s=keep_s)
        self.webhooks = self._make_webhooks()
        #: The dashboard's first page as last made, by caller: what it was made of, and the page.
        self.first_pages: dict[Caller, tuple[object, bytes]] = {}
        #: Users and teams of jobs with a deadline that are being judged or written, by the request.
        self.claimed_deadlines: dict[object, frozenset[str]] = {}
        self._lease: tuple[float, float | None] = (-_LEASE_S, None)
        self._status = ControllerStatus()
        if self.watch is not None:
            self.watch.start(self.follower.state.seq)

    def close(self) -> None:
        """Writes what is waiting and closes the store."""
        if self.watch is not None:
            self.watch.stop()
        self.history.stop()
        self.webhooks.close()
        self.writer.close()
        self.audit.close()
        self.log.close()
        self._tokens.close()

    def _make_webhooks(self) -> Webhooks:
        """With what happened while nobody was here to tell it."""
        follower = self.follower
        hooks = Webhooks(
            self.options.webhooks,
            secret_of(self.home.path / "webhook_key") if self.options.webhooks else b"",
            self.home.path / "webhooks.seq",
            private=self.options.private_webhooks,
            job=follower.job,
            late=lambda job: follower.standings.of(follower.state, job, follower.now).late,
            advice=lambda job: follower.advisor.of(follower.state, job, follower.now),
            describe=lambda job: short(follower.state, job, follower.now),
        )
        told = hooks.told
        if self.options.webhooks and told is not None:
            for record in self.log.read(max(told, self.log.first() - 1)):
                if record.seq > follower.state.seq:
                    break
                hooks.note(record)
        return hooks

    # -- jobs ------------------------------------------------------------------------------------------

    def seen(self, name: str, caller: Caller) -> JobState:
        """The job, for somebody who may see it."""
        self.follower.refresh()
        job = self.follower.job(name)
        if job is None or not caller.may_see(job.spec.user):
            raise not_found("job", name)
        return job

    def visible(self, caller: Caller) -> Callable[[str], bool]:
        """Returns a function that says of a job's name whether the caller may see it."""
        if sees_all(caller.role):
            return lambda name: True

        def of(name: str) -> bool:
            job = self.follower.job(name)
            return job is not None and caller.may_see(job.spec.user)

        return of

    def checked(self, spec: JobSpec, caller: Caller) -> JobSpec:
        """The specification as the caller would submit it: its user is the caller, whatever it says."""
        self.follower.refresh()
        spec = msgspec.structs.replace(spec, user=caller.name)
        if self.options.run_as:
            account_of(spec.user)
        self._check_team(spec)
        nodes = [each.node for each in self.follower.state.all_nodes.values()]
        jobs = _Jobs(self.follower, self.visible(caller))
        check_spec(
            spec, Surroundings(nodes=nodes, jobs=jobs, code=self.code, quotas=self.follower.state.quotas)
        )
        return spec

    def _check_team(self, spec: JobSpec) -> None:
        """Users and teams share quotas, budgets and weights by name: nobody may claim those of another user or team.

        Where no team has a list of members, every name of a team may be used.
        """
        if not spec.team or spec.team == spec.user:
            return
        if self.is_user(spec.team):
            raise InputError(
                f"team {spec.team!r} is the name of a user, for whose quota and share the job would count; "
                "name a team, or none"
            )
        members = self.follower.members()
        if members and spec.user not in members.get(spec.team, ()):
            mine = ", ".join(sorted(team for team, names in members.items() if spec.user in names)) or "none"
            what = f"{spec.user} is not a member of team" if spec.team in members else "there is no team"
            raise InputError(f"{what} {spec.team!r}; your teams: {mine}. An administrator adds members")

    def is_user(self, name: str) -> bool:
        """Returns True if a token or a job is of a user with this name."""
        return self.callers.has(name) or self.follower.index.has_user(name)

    # -- writing ---------------------------------------------------------------------------------------

    async def put(self, event: AnyEvent) -> int:
        """Puts an event into the inbox and returns its number; the event is durable when it returns."""
        (number,) = await self.put_made((lambda number: event, None))
        return number

    async def put_made(self, *entries: tuple[Maker, str | None], asked: Asked | None = None) -> list[int]:
        """Puts several events into the inbox, each made with its number; a repeat with the same key is not put again.

        ``asked``: what the answer is remembered by, under the key, for longer than the event is in the inbox.

        The one who makes the request is named in the audit log, in the same transaction, and in the event.
        """
        if self.writer.full:
            raise unavailable("the server is overloaded; try again", 2.0)
        made = [(self._by_actor(make), key, self._who(make)) for make, key in entries]
        try:
            numbers = await self.writer.put(*(Entry(*each, asked) for each in made))
        except KeyReusedError:
            raise Refused(409, "the Idempotency-Key was used for another request; use a new one") from None
        except Exception:
            # what exactly is wrong with the disk is in the log of this process, not everybody's to know
            raise unavailable(
                "the store cannot be written now; try again, with the same Idempotency-Key", 5.0
            ) from None
        for (make, _, _), number in zip(made, numbers, strict=True):
            self.follower.put(make(number))
        return numbers

    @staticmethod
    def _by_actor(make: Maker) -> Maker:
        # the thread that writes has no request
        by = audit_trail.actor_name()
        return lambda number: audit_trail.attributed(make(number), by)

    def _who(self, make: Maker) -> Attribution | None:
        event = make(0)
        if not audit_trail.is_audited(event):
            return None
        before: JobSpec | QuotaSet | None = None
        if isinstance(event, SpecChanged):
            job = self.follower.job(event.job)
            before = None if job is None else self.follower.spec(job)
        elif isinstance(event, QuotaSet):
            before = self.follower.granted(event.group)
        return audit_trail.attribution(audit_trail.detail_of(event, before))

    async def answered(self, key: str) -> Answered | None:
        """Returns the answer that was given to a request with this key, in a thread; None if there was none."""

        def look() -> Answered | None:
            with closing(self.store.inbox()) as inbox:
                return inbox.answered(key)

        return await asyncio.to_thread(look)

    async def with_tokens(self, do: Callable[[TokenStore], _T]) -> _T:
        """Changes tokens, in a thread, because it may have to wait for another writer."""

        def work() -> _T:
            with closing(self.store.tokens()) as tokens:
                done = do(tokens)
            if self.watch is not None:
                self.watch.reload_tokens()
            return done

        try:
            return await asyncio.to_thread(work)
        finally:
            self.callers.forget()

    def _load_tokens(self) -> Mapping[str, Token]:
        return self._tokens.by_hash() if self.watch is None else self.watch.tokens()

    async def catch_up(self) -> None:
        """Folds all that is in the log now, for a caller who knows that something new is there."""
        if self.watch is not None:
            await asyncio.to_thread(self.watch.look_again, _ANSWER_S)
        self.follower.refresh(force=True)

    async def with_audit(self, do: Callable[[AuditLog], _T]) -> _T:
        """Reads the audit log, in a thread."""

        def work() -> _T:
            with closing(self.store.audit()) as audit:
                return do(audit)

        return await asyncio.to_thread(work)

    # -- the controller --------------------------------------------------------------------------------

    def controller_age_s(self) -> float | None:
        """Returns the seconds since the controller renewed its lease; None if there is no controller."""
        if self.watch is not None:
            read, found, self._status = self.watch.lease
            return None if found is None else found.age_s + time.monotonic() - read
        moment, age_s = self._lease
        waited_s = time.monotonic() - moment
        if waited_s >= _LEASE_S:
            holder = None
            with suppress(InputError):
                holder, self._status = self.log.holder(), read_status(self.log.status())
            age_s, waited_s = None if holder is None else holder.age_s, 0.0
            self._lease = (time.monotonic(), age_s)
        return None if age_s is None else age_s + waited_s

    def controller_status(self) -> ControllerStatus:
        """Returns the controller's last status, read together with its lease."""
        self.controller_age_s()
        return self._status

    def _records(self, seqs: Sequence[int]) -> list[Record]:
        """These records, from memory where they are recent."""
        found = []
        for seq in seqs:
            recent = self.follower.recent
            if recent and recent[0].seq <= seq:
                found.append(recent[seq - recent[0].seq])
            else:
                record = self.log.find(seq)
                if record is not None:  # else reports were merged meanwhile
                    found.append(record)
        return found


class _Jobs(Collection[str]):
    """Names of the jobs that a caller may see, without copying them."""

    def __init__(self, follower: Follower, visible: Callable[[str], bool]) -> None:
        self._follower, self._visible = follower, visible

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and self._follower.job(name) is not None and self._visible(name)

    def __iter__(self) -> Iterator[str]:
        return (job.id for job in self._follower.jobs() if self._visible(job.id))

    def __len__(self) -> int:
        return sum(1 for _ in self)


def newest_state(log: EventLog) -> SchedulerState:
    """Returns the state of the newest snapshot; an empty one if there is none."""
    return restore(log, saved_state) or SchedulerState()
