"""Worlds in which several things are unusual at once, for what must show any of them.

for mixture in MIXTURES:                      # any two choices are together in one of them
    context = mixed(mixture, tmp_path)        # a CommandContext over its bucket, its ledger and its music
"""

import json
import os
import sys
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from functools import cache
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

_TESTS = Path(__file__).parent
sys.path += [folder for room in ("story", "music", "runs", "cron") if (folder := str(_TESTS / room)) not in sys.path]

from all_pairs import all_pairs  # noqa: E402
from odd_records import FIRST, FOREIGN, LAST, ODD, RECORDS, WHOLE, run_in  # noqa: E402
from operator_states import ID, STATES  # noqa: E402
from own_poems import NAMED  # noqa: E402
from rows_world import Rows  # noqa: E402
from story_ticks import DOCUMENT, PUBLIC, Scripted  # noqa: E402
from story_world import KEYS  # noqa: E402

from retake.alerts.board import Alert, Board, ChannelQueue, QueuedMessage, encoded  # noqa: E402
from retake.alerts.message import AlertEvent  # noqa: E402
from retake.alerts.settings import AlertChannel  # noqa: E402
from retake.bucket import ANY  # noqa: E402
from retake.clock import stamp  # noqa: E402
from retake.console.command_context import CommandContext  # noqa: E402
from retake.music.settings import MusicSettings, ServiceSettings  # noqa: E402
from retake.music.states import STATES as MUSIC_STATES  # noqa: E402
from retake.operations.events import WEB  # noqa: E402
from retake.retrying.dead_letters import DeadLetters  # noqa: E402
from retake.runs import open_ledger  # noqa: E402
from retake.runs.run import ERROR, STEP_DONE  # noqa: E402
from retake.runs.states import RunStatus  # noqa: E402

CHANNELS = ("cats", "dogs")
NO_DATABASE = "no database at all" * 10
NO_LEDGER = "file is not a database"  # what is said of it

Mixture = Mapping[str, str]
"""The choice of each dimension of `MIXED`, and the story's state."""


class MixedWorld:
    """A world while it is being made. `prefix` is that of the part of the bucket in which the story is."""

    def __init__(self, story: str, folder: Path) -> None:
        self.world: Scripted = STATES[story]()
        self.folder, self.prefix = folder, ""
        self.music: MusicSettings | None = None
        self.at = stamp(self.world.clock.now())
        self.day = self.at[:10]
        self.spoils: Path | None = None  # a database that something else takes the place of, once all is made

    @property
    def part(self) -> Any:
        return self.world.bucket.part(self.prefix)

    @property
    def ledger(self) -> Any:
        return open_ledger(self.world.settings.storage.ledger, self.part, self.world.clock)

    def set(self, **settings: Any) -> None:
        self.world.settings = self.world.settings._replace(**settings)

    def put(self, key: str, document: Any) -> None:
        data = document if isinstance(document, bytes) else json.dumps(document).encode()
        self.world.bucket.write(key, data, ANY)


Choice = Callable[[MixedWorld], None]


def nothing(it: MixedWorld) -> None:
    """Leave it as it is."""


# --- channels, ledgers, and pipelines of your own --------------------------------------------------------------------


def channels(it: MixedWorld) -> None:
    for key, data in it.world.everything().items():
        it.world.bucket.delete(key)
        for name in CHANNELS:
            it.put(f"{name}/{key}", data)
    it.set(channels=CHANNELS)
    it.prefix = f"{CHANNELS[0]}/"


def one_channel_unreadable(it: MixedWorld) -> None:
    channels(it)
    it.put(f"{CHANNELS[1]}/{DOCUMENT}", b"{")
    it.put(f"{CHANNELS[1]}/{PUBLIC}", b"7")


def story_unreadable(it: MixedWorld) -> None:
    it.put(DOCUMENT, {"status": 7})


def on_sqlite(it: MixedWorld) -> None:
    it.set(storage=it.world.settings.storage._replace(ledger=f"sqlite:{it.folder}/runs.db"))


def ledger_unreadable(it: MixedWorld) -> None:
    on_sqlite(it)
    it.spoils = it.folder / "runs.db"


def channels_on_sqlite(it: MixedWorld) -> None:
    channels(it)
    on_sqlite(it)


def own_pipeline(it: MixedWorld) -> None:
    it.set(pipelines=NAMED)
    part = it.world.bucket.part("poems/")
    part.write("poem.json", b'{"stuck": true}', ANY)
    open_ledger(None, part, it.world.clock).create_for_task("poem-1", "poem-1#1", actor="cron", pipeline="poems")
    DeadLetters(part, it.world.clock).put("poem-0", "poem", {}, {"message": "no rhyme"})


def own_pipeline_unloadable(it: MixedWorld) -> None:
    it.set(pipelines={"poems": "own_poems:Nothing"})


# --- music ------------------------------------------------------------------------------------------------------------


def music_new(it: MixedWorld) -> None:
    it.music = MusicSettings(music=ServiceSettings(database=f"sqlite:{it.folder}/music.db"))


def music_unreadable(it: MixedWorld) -> None:
    music_new(it)
    (it.folder / "music.db").write_text(NO_DATABASE)


def music_in(make: Callable[[Rows], None]) -> Choice:
    """Choose a database of music. It is made once, and copied."""

    @cache
    def made(moment: datetime) -> bytes:
        with TemporaryDirectory() as folder:
            rows = Rows(f"sqlite:{folder}/music.db")
            rows.clock.moment = moment
            make(rows)
            rows.database.close()
            return Path(folder, "music.db").read_bytes()

    def choose(it: MixedWorld) -> None:
        (it.folder / "music.db").write_bytes(made(it.world.clock.now()))
        settings = ServiceSettings(database=f"sqlite:{it.folder}/music.db", daily_cap_usd=0.25)
        it.music = MusicSettings(music=settings)
        it.put("music/1/cover.png", b"picture")

    return choose


def in_every_state(rows: Rows) -> None:
    """A pipeline in each state, which has paid for nothing."""
    for state in MUSIC_STATES:
        pipeline = rows.create(f"track {state}")
        rows.actions.change(pipeline.id, lambda cursor, row, state=state: {"state": state})


def paid(rows: Rows) -> None:
    """Pipelines whose call has each outcome; one has failed, one waits for a person, and the cap holds one back."""
    for outcome in ("accepted", "refused", "lost", "held", "pending"):
        rows.create(f"{outcome} {ODD}"[:100])
        attempt = rows.begin()
        rows.pay(attempt, outcome)
        if outcome == "held":
            rows.attempts.await_person(attempt, f"cover: {ODD}", "ERR_TEMPORARY_NETWORK")
        if outcome == "refused":
            rows.attempts.fail(attempt, ODD, "ERR_BUSINESS_REJECTED", again=False)
    rows.create("done")
    rows.succeed()
    rows.create("capped")
    rows.held_back()


# --- runs -------------------------------------------------------------------------------------------------------------


def of_generation(it: MixedWorld, status: RunStatus) -> None:
    """Make a run of the story's generation, unless it has one."""
    name, ledger = f"{it.prefix}{ID}", it.ledger
    if not ledger.of_task(name):
        run_in(ledger, status, name, f"story/{CHANNELS[0]}" if it.prefix else "story", WHOLE)


def runs_in_every_state(it: MixedWorld) -> None:
    """Runs of workers and of a robot in each state, with a record of what failed and without one."""
    of_generation(it, RunStatus.RUNNING)
    for pipeline in ("posters", "robot/NR.NSI.2"):
        for status in RunStatus:
            for name in ("whole", "none"):
                run_in(it.ledger, status, f"{pipeline}/{status}-{name}", pipeline, RECORDS[name])


def runs_odd(it: MixedWorld) -> None:
    """Runs with hostile texts, and with records that lack what others have."""
    of_generation(it, RunStatus.RETRY_SCHEDULED)
    for name, record in RECORDS.items():
        for status in (RunStatus.FAILED, RunStatus.RETRY_SCHEDULED):
            run_in(it.ledger, status, f"{name} {status} {ODD}"[:300], ODD[:200] if name == "long" else "", record)
    noted = run_in(it.ledger, RunStatus.RUNNING, "noted", "posters")
    for kind, payload in {
        STEP_DONE: {"step": 7, "task_id": [], "seen_at_utc": "x", "text": {}},
        "run.result": {"text": f"\0{ODD}" * 20},
        "run.nothing": {},
        ODD[:200]: {ODD: {"b": [None, True, 1e300]}},
    }.items():
        it.ledger.note(noted, kind, payload, actor=ODD[:200])
    it.ledger.note(noted, STEP_DONE, {"step": "cut", "seen_at_utc": FIRST}, actor="worker")


def runs_foreign(it: MixedWorld) -> None:
    """Runs in the bucket that people or other programs have changed, some so that they cannot be read."""
    of_generation(it, RunStatus.FAILED)
    ledger = open_ledger(None, it.part, it.world.clock)
    for number in range(25):
        it.put(f"{it.prefix}runs/{run_in(ledger, RunStatus.FAILED, f'broken-{number}', 'posters').run_id}.json", b"{")
    changed = {"status": 7, "previous_status": [], "actor": {}, "attempt": "x", "next_retry_at": 3, "error_code": {}}
    for name, changes, payload in (
        ("early", {"created_at": FIRST, "updated_at": FIRST}, {}),
        ("late", {"created_at": LAST, "updated_at": LAST}, {}),
        ("backwards", {"created_at": LAST, "updated_at": FIRST}, {}),
        ("many", dict.fromkeys(("attempt", "retries", "resumes", "crashes"), 10**400), {}),
        ("record", {}, FOREIGN),
        ("events", {}, changed),
    ):
        run = run_in(ledger, RunStatus.FAILED, f"changed-{name}", "posters", WHOLE)
        raw = json.loads(it.part.read(f"runs/{run.run_id}.json")[0])
        for event in raw["events"]:
            event["at"] = changes.get("created_at", event["at"])
            if name == "events" or event["kind"] == ERROR:
                event["payload"] = payload
        it.put(f"{it.prefix}runs/{run.run_id}.json", {**raw, **changes})


# --- dead letters -----------------------------------------------------------------------------------------------------


def letters_of_every_kind(it: MixedWorld) -> None:
    """A letter of the story, of a robot, of an image job; paid work of nobody; what was rolled back or cancelled; and
    remains."""
    folder = f"{it.prefix}dead_letters"
    task = {"task_id": "t", "task_type": "imagine", "requested_at_utc": it.at}
    it.put(f"{folder}/before-20260101-0001/config_midjourney.json", {"midjourney_task": task})
    letters = DeadLetters(it.part, it.world.clock)
    letters.put("robot-1", "robot item", {"n": 1}, WHOLE, {"picture.png": b"x"})
    letters.put("image-1", "image job", {"prompt": "x"}, {})
    call = {"step": "imagine", "attempt": 1, "price_usd": 0.045, "outcome": "unknown", "possible_duplicate": True}
    for name, more in {
        "20251231-0900": {"paid_calls": [call], "last_error": WHOLE},
        "20251231-0901": {"cancelled": {"by": "web", "at_utc": it.at}},
        "20251231-0902": {"kind": "rollback"},
        "20251231-0903": {"ended": "requeued"},
        "20251231-0904": {"ended": "dropped"},
    }.items():
        report = {"generation_id": name, "failed_at_utc": it.at, "failed_step": "upscale", **more}
        it.put(f"{folder}/{name}/report.json", report)
        it.put(f"{folder}/{name}/{name}.json", {"topic": "x"})


def letters_foreign(it: MixedWorld) -> None:
    """Letters whose reports make little sense, or are gone."""
    folder = f"{it.prefix}dead_letters"
    call = {"step": [], "attempt": {}, "price_usd": "x", "outcome": 7, "requested_at_utc": 3, "task_id": ["t"]}
    for name, report in {
        "odd-1": {"generation_id": 7, "failed_at_utc": 7, "failed_step": [1], "kind": {}, "paid_calls": [call, 3, {}]},
        "odd-2": {"last_error": FOREIGN, "cancelled": 5, "failed_step": ODD, "ended": [], "files": {"a": 1}},
        "odd-3": {"last_error": RECORDS["long"], "kind": ODD, "failed_at_utc": LAST},
        "odd-4": {"failed_at_utc": FIRST, "paid_calls": {}, "last_error": [], "cancelled": {}},
        "odd-5": [],
        "odd-6": {},
        "before-odd": {"paid_calls": [call]},
    }.items():
        it.put(f"{folder}/{name}/report.json", report)
    it.put(f"{folder}/half/report.json", b"{")
    it.put(f"{folder}/bare/a.json", b"{}")
    it.put(f"{folder}/stray.json", b"{}")


# --- alerts -----------------------------------------------------------------------------------------------------------


def _alert(it: MixedWorld, name: str, **more: Any) -> Alert:
    given = {"level": "error", "title": f"alert {name}", "seen": {"story": it.at}, **more}
    alert = Alert(f"a-{name}", f"key-{name}", "key_refused", "", "", 1, {}, it.at, it.at)
    return alert._replace(**given)


def alerts_in_every_state(it: MixedWorld) -> None:
    """Alerts that are open, acknowledged and over; channels that were told, that failed, and that wait."""
    alerts = [
        _alert(it, "open", message="so it is", follows="it stops", command="retry 1", generation_id=ID, step="upscale"),
        _alert(
            it, "mine", state="acknowledged", acknowledged_by="mia", level="warning", told=("ops",), attempt="2 of 4"
        ),
        _alert(it, "shared", level="critical", seen={"": it.at, "story/cats": it.at}, tell_at=it.at, since=it.at),
    ]
    ended = (
        _alert(it, "over", state="resolved", closed_at=it.at, had=("story",), told=("ops", "gone")),
        _alert(it, "closed", state="resolved", closed_at=it.at, closed_by="mia", seen={}),
    )
    waits = QueuedMessage("m-1", AlertEvent.TRIGGER, it.at, "a-open", "error", "t", "x", {})
    queues = {
        "ops": ChannelQueue((waits,), failures=3, last_error=ODD, next_at=it.at, refused_at=it.at),
        "gone": ChannelQueue(last_delivered_at=it.at, sending_until=it.at),
    }
    it.put("alerts/state.json", encoded(Board({alert.key: alert for alert in alerts}, queues, ended)))
    named = [AlertChannel(name, "webhook", "NOT_SET", (), "any", (), True, (), {}) for name in ("ops", "new")]
    it.set(alerts=it.world.settings.alerts._replace(channels=tuple(named)))


def alerts_odd(it: MixedWorld) -> None:
    """Alerts with hostile texts and times that cannot be."""
    texts = ("generation_id", "step", "attempt", "error_class", "error_code", "acknowledged_by", "message", "command")
    times = {"tell_at": LAST, "told_at": FIRST, "first_at": LAST, "last_at": FIRST}
    alerts = [
        _alert(
            it, "long", title=ODD * 5, seen={ODD: ODD}, told=(ODD,), **dict.fromkeys(texts, ODD), since=ODD, **times
        ),
        _alert(it, "bare", title="", seen={}, generation_id="../x", state="acknowledged"),
    ]
    it.put("alerts/state.json", {**encoded(Board({alert.key: alert for alert in alerts})), "mode": 7})


def alerts_unreadable(it: MixedWorld) -> None:
    it.put("alerts/state.json", b"{")
    it.put(f"alerts/{it.day}.json", b"[]")


# --- modes, breakers, spend -------------------------------------------------------------------------------------------


def mode(hand: int | None, auto: int = 0, until: str | None = None) -> Choice:
    def choose(it: MixedWorld) -> None:
        by_hand = None if hand is None else {"mode": hand, "why": ODD, "since": it.at, "until": until}
        seen = {"mode": auto, "since": it.at, "error_share": 0.5, "tries": 9}
        it.put("mode/state.json", {"hand": by_hand, "auto": seen})
        it.set(modes=it.world.settings.modes._replace(auto=auto > 0))

    return choose


def mode_invalid(it: MixedWorld) -> None:
    it.put("mode/state.json", {"hand": {"mode": 9}})


def breakers(**state: Any) -> Choice:
    def choose(it: MixedWorld) -> None:
        until = stamp(it.world.clock.now() + timedelta(minutes=1))
        told = {name: it.at if value == "now" else until if value == "soon" else value for name, value in state.items()}
        for name in ("midjourney", "runway", "robot.NR.NSI.2"):
            it.put(f"breakers/{name}.json", {"failures": [it.at] * 5, **told})

    return choose


def breakers_invalid(it: MixedWorld) -> None:
    it.put("breakers/midjourney.json", {"failures": 7})
    it.put("breakers/chat.json", b"{")
    it.put("breakers/odd name \u202e.json", {"failures": [it.at], "open_until": LAST})


def books(days: Mapping[int, Any], **caps: float) -> Choice:
    """Choose what is paid by day, counted from today, and the caps."""

    def choose(it: MixedWorld) -> None:
        for ahead, paid in days.items():
            day = it.world.clock.now() + timedelta(days=ahead)
            it.put(f"caps/{day:%Y-%m-%d}.json", {"pipelines": paid})
        it.set(workflow=it.world.settings.workflow._replace(**caps))

    return choose


def book_unreadable(it: MixedWorld) -> None:
    it.put(f"caps/{it.day}.json", b"{")


def lease_held(it: MixedWorld) -> None:
    it.part.lease("story", ODD)


def flag_left(it: MixedWorld) -> None:
    it.put(f"{it.prefix}{PUBLIC}", {"processing_lock": True})


_PAID = {"settled_usd": 0.61, "open": {"x/1": 0.5}}
_BOOK = {"story": _PAID, "story/cats": _PAID, "story/dogs": {}, "poems": _PAID, "posters": _PAID, ODD: _PAID}

MIXED: Mapping[str, Mapping[str, Choice]] = {
    "channels": {
        "none": nothing, "two": channels, "one unreadable": one_channel_unreadable, "two on sqlite": channels_on_sqlite,
        "story unreadable": story_unreadable, "ledger unreadable": ledger_unreadable,
    },
    "own": {"none": nothing, "one": own_pipeline, "unloadable": own_pipeline_unloadable},
    "music": {
        "none": nothing, "new": music_new, "unreadable": music_unreadable,
        "every state": music_in(in_every_state), "paid": music_in(paid),
    },
    "runs": {"none": nothing, "every state": runs_in_every_state, "odd": runs_odd, "foreign": runs_foreign},
    "letters": {"none": nothing, "every kind": letters_of_every_kind, "foreign": letters_foreign},
    "alerts": {
        "none": nothing, "every state": alerts_in_every_state, "odd": alerts_odd,
        "unreadable": alerts_unreadable,
    },
    "mode": {
        "none": nothing, "0 by hand": mode(0), "1 by hand": mode(1, until=LAST), "3 by itself": mode(None, 3),
        "invalid": mode_invalid,
    },
    "breakers": {
        "none": nothing, "closed": breakers(), "open": breakers(open_until="soon", opened_at="now", code="ERR_X"),
        "half open": breakers(open_until="now", code=ODD, probe={"who": ODD, "since": FIRST}),
        "invalid": breakers_invalid,
    },
    "spend": {
        "none": nothing, "days": books({-40: _BOOK, -1: _BOOK, 0: _BOOK}), "unreadable": book_unreadable,
        "capped": books({0: _BOOK}, daily_cap_usd=0.0, channel_cap_usd=0.2),
        "ahead": books({0: _BOOK, 900: {"story": _PAID}}, daily_cap_usd=10.0),
    },
    "lease": {"free": nothing, "held": lease_held, "flag left": flag_left},
}  # fmt: skip
"""The dimensions, and the choices of each. They are made in this order."""

MIXTURES = [
    {"story": story, **chosen}
    for story, chosen in all_pairs(MIXED, STATES, Random(int(os.environ.get("RETAKE_SEED") or 1)))
]
"""RETAKE_SEED=N makes others."""


def named(mixture: Mixture) -> str:
    """Return what is unusual in a mixture, for messages about a failure."""
    return ", ".join(f"{name}: {choice}" for name, choice in mixture.items() if choice != "none")


def mixed(mixture: Mixture, folder: Path) -> CommandContext:
    """Return a context over the world of a mixture, whose databases are in `folder`."""
    it = MixedWorld(mixture["story"], folder)
    for name, choices in MIXED.items():
        choices[mixture[name]](it)
    if it.spoils:
        it.spoils.write_text(NO_DATABASE)
    given = {"clock": it.world.clock, "bucket": it.world.bucket, "settings": it.world.settings, "music": it.music}
    return CommandContext({}, keys=KEYS, actor=WEB, **given)
