"""One tick of the pipeline: take the lease, read and check everything, decide, act, until there is reason to rest.

The manager decides nothing about a generation by itself (see decision.py) and calls no vendor: what asks or pays is
done by the scripts, which run one at a time under the manager's lease.
"""

from collections.abc import Callable, Container
from logging import getLogger
from typing import TYPE_CHECKING

from retake.bucket import Bucket, Lease
from retake.clock import Clock
from retake.errors import LeaseHeld
from retake.keys import Keys
from retake.story.breakers import Breakers
from retake.story.decision import Act, Action, decide, paid_step, rest_of_day
from retake.story.documents import Documents, Step
from retake.story.generation import new_id, taken_ids
from retake.story.ledgers import Ledgers
from retake.story.settings import Settings
from retake.story.shell import LEASE
from retake.story.shift import NO_ORDERS, Orders, Scripts, Shift, Tick, tidy_plan
from retake.story.spending import Spending
from retake.story.store import DocumentStore

if TYPE_CHECKING:
    from retake.story.chronicle import Chronicle

Observer = Callable[[Documents, Action], None]

_log = getLogger(__name__)


class Manager:
    """Drives one pipeline; on the ledger its runs are called `pipeline` («story», «story/CHANNEL»). `observe` is shown
    each decision before it is carried out.

    `unflagged` are the actions for which `processing_lock` is not raised. It tells people and other programs that
    something is being changed; where a thousand pipelines wait for their vendors, a poll that changes nothing need not.
    """

    def __init__(
        self,
        settings: Settings,
        bucket: Bucket,
        scripts: Scripts,
        keys: Keys,
        clock: Clock,
        *,
        owner: str,
        pipeline: str = "story",
        ledgers: Ledgers | None = None,
        breakers: Breakers | None = None,
        spending: Spending | None = None,
        observe: Observer = lambda documents, action: None,
        unflagged: Container[Act] = (),
    ) -> None:
        self.settings = settings
        self.bucket = bucket
        self._scripts = scripts
        self._keys = keys
        self._clock = clock
        self._owner = owner
        self._pipeline = pipeline
        self._ledgers = ledgers or Ledgers(settings.storage.ledger, clock)
        self._breakers = breakers or Breakers(settings, bucket, clock, owner)
        self._spending = spending or Spending(settings, bucket, clock, pipeline)
        self._observe = observe
        self._unflagged = unflagged

    def tick(self, orders: Orders = NO_ORDERS) -> Tick:
        """Raises StateError, StorageError, LeaseLost, SettingsError; the lock is given back in any case."""
        try:
            lease = self.bucket.lease(LEASE, self._owner)
        except LeaseHeld as held:
            _log.info("%s", held)
            return Tick(0, str(held), resting=False)
        try:
            store = DocumentStore(self.bucket, self.settings.paths, lease, self._clock)
            shift = Shift(
                self.settings,
                store,
                lease,
                self._scripts,
                self._keys,
                self._clock,
                self._observe,
                self._unflagged,
                lambda: self._chronicle(lease),
                self._breakers,
                self._spending,
            )
            return shift.work(orders)
        finally:
            lease.release()

    def _chronicle(self, lease: Lease) -> "Chronicle":
        from retake.story.chronicle import CRON, Chronicle

        ledger = self._ledgers.of(self.bucket, lease)
        apart = self._ledgers.apart
        return Chronicle(ledger, self._pipeline, self._clock, actor=CRON, worker=self._owner, apart=apart)

    def dry_run(self) -> list[str]:
        """What a tick would do, in words; nothing is changed."""
        store = DocumentStore(self.bucket, self.settings.paths, None, self._clock)
        documents = store.read()
        action = decide(documents, self.settings.workflow, self._clock.now())
        step = paid_step(action)
        if step and (over := self._spending.over(documents.midjourney, step)):
            action = rest_of_day(action, over)
        about = documents.gen.generation_id or "no generation"
        lines = [f"{about}: would {action.act} ({action.why})"]
        if action.act is Act.BEGIN:
            plan = tidy_plan(store)
            lines += [f"would move {move.source} to {move.target}" for moves in plan.moves for move in moves]
            over = self._spending.over(documents.midjourney, Step.CONTENT) if plan.room else ""
            first = f"would begin {new_id(self._clock.now(), taken_ids(store))}"
            first = f"would begin nothing: {over}" if over else first
            lines.append(first if plan.room else f"{store.paths.folder_666} holds a ready group: would begin nothing")
        return lines
