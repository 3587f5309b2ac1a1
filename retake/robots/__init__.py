"""The nine robots of docs/protocol.md: their error protocols as data (config/policies), and the engine that runs them.

policies.py         RobotPolicy, and the strict loader of the policy files
repeats.py          the tables [retry] and [item_retry]
sections.py         the other tables, as typed values
follow_ups.py       the actions that may follow a failure, as data
recovery.py         the recovery from an error: each robot's own steps, and the protocol for all robots
robot.py            Robot: does a piece of work under its protocol
execution.py        one piece of work from beginning to end: its records, and the actions that follow a failure
run_record.py       the same work as a run on a ledger, for metrics
action_sink.py      ActionSink: receives the actions that follow a failure
alert_sink.py       AlertSink: raises alerts for the actions that call a person
deferred.py         work that is due again later
chain.py            robots that work one after another, until one fails fast
protocol.py         what a robot's policy implies: policies for creation and batches, the longest deferral
creation.py         Creator: an item that is requested twice is created once
idempotency.py      key_of: the idempotency key of data
read_only.py        the mode in which a creator only looks up items
compensation.py     Unconfirmed: items created but not yet confirmed, and when they are rolled back
batch.py            Batches: many items created in few calls, each at most once
batch_plan.py       pure: the next step of a batch, and what follows from an answer
degraded.py         may_run: which robots run in which degraded mode
cache.py            Cache: earlier results, used while there are no new ones
locks.py            Locks: many readers or one writer, across processes
outbox.py           Outbox: messages that are delivered at least once, in order
saga.py             Saga: steps that are undone if one of them fails
snapshots.py        Snapshots: copies of a state in several buckets; the newest intact one is restored
fallback.py         Stores: a value goes to the first store that accepts it, and to the primary store later
backlog.py          Backlog: the queue, in a state store, of the outbox and the fallback stores
wording.py          the protocol in words, for people
play/               one robot at work on a test clock, against a world that fails as ordered
step_validation.py  grid, validate: whether a number lies on a grid of steps
"""

from retake.robots.batch_plan import Made
from retake.robots.execution import Ports
from retake.robots.idempotency import key_of
from retake.robots.policies import load_policies
from retake.robots.robot import Robot
from retake.robots.step_validation import grid, validate

__all__ = ["Made", "Ports", "Robot", "grid", "key_of", "load_policies", "validate"]
