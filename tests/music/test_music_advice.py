"""Advice about a music pipeline is always accepted, whether `status`, alerts, Telegram or the reason of a failure gives
it. Each advised command is carried out.

RETAKE_SEEDS sets how many worlds the search tries; RETAKE_SEED replays one.
"""

import re
import sqlite3
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from itertools import count
from pathlib import Path

import pytest
from rig import Rig
from rows_world import Rows
from seeds import wanted
from test_music_simulation import Simulation

from retake.bucket import ANY, Bucket
from retake.bucket.memory import MemoryBucket
from retake.clock import Clock, FakeClock
from retake.console.command_context import CommandContext
from retake.keys import Keys
from retake.music import states
from retake.music.alerts import findings
from retake.music.database import open_music_database
from retake.music.operations import MusicOperations, vendors_of
from retake.music.settings import MusicSettings
from retake.music.states import STEPS, MusicStep
from retake.music.store import PipelineStore
from retake.music.survey import messages_of, survey
from retake.story.settings import Settings

sys.path.append(str(Path(__file__).parents[1]))

from advised import commands_in, take

ACTS = {"retry", "resolve", "cancel"}
WAITING = (states.FAILED, states.AWAITING_MANUAL)


def needs(settings: MusicSettings, bucket: Bucket, clock: Clock) -> tuple[str, ...]:
    return MusicOperations(settings, bucket, clock).state(None, lambda vendor: "").needs


def told(settings: MusicSettings, bucket: Bucket, clock: Clock) -> Iterator[str]:
    """Yield each text about what waits for a person or has failed."""
    yield from needs(settings, bucket, clock)
    with closing(open_music_database(settings.music.database, clock, read_only=True)) as database:
        store = PipelineStore(database)
        with database.reading() as cursor:
            yield from (it.command for it in findings(survey(cursor), vendors_of(settings), clock.now()).found)
            for row in store.listing(WAITING):
                yield row.failed_reason or ""
                yield from (it.text for it in messages_of(cursor, row.id)[-1:])


def context_of(settings: MusicSettings, bucket: Bucket, clock: Clock) -> CommandContext:
    return CommandContext({}, clock=clock, bucket=bucket, settings=Settings(), keys=Keys(), music=settings)


# --- each trouble -----------------------------------------------------------------------------------------------------


def failed(step: MusicStep, code: str = "ERR_BUSINESS_REJECTED") -> Callable[[Rows], None]:
    def make(rows: Rows) -> None:
        rows.at(rows.create(), step)
        rows.fail("no", code)

    return make


def awaiting(step: MusicStep) -> Callable[[Rows], None]:
    def make(rows: Rows) -> None:
        rows.at(rows.create(), step)
        rows.await_person("the answer is lost")

    return make


def written(state: str, reason: str | None = None) -> Callable[[Rows], None]:
    """Write a row as another program does, without attempts."""

    def make(rows: Rows) -> None:
        rows.actions.change(rows.create().id, lambda cursor, row: {"state": state, "failed_reason": reason})

    return make


TROUBLES: dict[str, Callable[[Rows], None]] = {
    **{f"{step} failed": failed(step) for step in STEPS},
    "a key is refused": failed(MusicStep.COVER, "ERR_CRITICAL_UNAUTHORIZED"),
    "an order of unknown outcome": awaiting(MusicStep.COVER),
    "an upload of unknown outcome": awaiting(MusicStep.PUBLISH),
    "failed by another program": written(states.FAILED),
    "failed by another program, with words": written(states.FAILED, "it was too loud"),
    "left to a person by another program": written(states.AWAITING_MANUAL),
}


@pytest.mark.parametrize("name", TROUBLES)
def test_each_command_that_is_advised_is_accepted_and_helps(name: str, tmp_path: Path) -> None:
    numbers = count()

    def world() -> Rows:
        rows = Rows(f"sqlite:{tmp_path}/{next(numbers)}.db")
        TROUBLES[name](rows)
        return rows

    rows = world()
    texts = {*told(rows.settings, rows.bucket, rows.clock)}
    [need] = needs(rows.settings, rows.bucket, rows.clock)
    advised = [words for text in sorted(texts) for words in commands_in(text)]
    assert len([words for words in advised if words[1] in ACTS]) >= 2, "both status and an alert give advice"
    rows.database.close()
    for words in advised:
        with closing((rows := world()).database):
            take(words, context_of(rows.settings, rows.bucket, rows.clock))
            assert need not in needs(rows.settings, rows.bucket, rows.clock), words


def test_a_message_about_a_decision_names_what_can_be_decided(tmp_path: Path) -> None:
    for step, choices in ((MusicStep.COVER, 1), (MusicStep.PUBLISH, 2)):
        with closing((rows := Rows(f"sqlite:{tmp_path}/{step}.db")).database):
            awaiting(step)(rows)
            with rows.database.reading() as cursor:
                [message] = messages_of(cursor, 1)
            assert len([*commands_in(message.text)]) == choices, message.text


# --- the search -------------------------------------------------------------------------------------------------------


class AdvisedWorld(Simulation):
    """A simulation that follows all advice, in a copy, before each order."""

    def __init__(self, seed: int, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__(seed, folder, monkeypatch)
        self.folder, self.copies = folder, count()

    def give_order(self, rig: Rig) -> None:
        self.order_fault()  # more often than in a simulation: advice follows failures
        calm, self.chance.calm = self.chance.calm, True
        settings, bucket, clock = self.two.settings, self.two.bucket, FakeClock(self.clock.now())
        for text in sorted({*told(settings, bucket, clock)}):
            for words in commands_in(text):
                self.take_in_copy(words, text)
        self.chance.calm = calm
        super().give_order(rig)

    def take_in_copy(self, words: list[str], text: str) -> None:
        path = self.folder / f"copy-{next(self.copies)}.sqlite3"
        with closing(sqlite3.connect(self.folder / "music.sqlite3")) as whole, closing(sqlite3.connect(path)) as copy:
            whole.backup(copy)
        bucket, clock = MemoryBucket(), FakeClock(self.clock.now())
        for entry in self.two.bucket.list(""):
            bucket.write(entry.key, self.two.bucket.read(entry.key)[0], ANY)
        music = self.two.settings.music._replace(database=f"sqlite:{path}", uploads_per_day=None)
        settings = self.two.settings._replace(music=music)
        take(words, context_of(settings, bucket, clock))
        if re.match(r"music-\d+ ", text):  # something that needs a person
            assert text not in needs(settings, bucket, clock), words


@pytest.mark.search
@pytest.mark.parametrize("seed", wanted(600, 120))
def test_whatever_happens_what_is_advised_is_accepted(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = AdvisedWorld(seed, tmp_path, monkeypatch)
    try:
        world.play()
    finally:
        world.close()
