"""Taps and replies on Telegram, each of which acts once, even across a crash.

An update is recorded in the transaction that carries out its order, with the answer to its tap. An update that arrives
again, or whose answer was not sent, is answered and does nothing more.
"""

import re
from collections.abc import Collection, Iterable
from datetime import datetime, timedelta
from logging import getLogger
from typing import NamedTuple

from sqlalchemy import ColumnElement, delete, func, select, true, update

from retake.errors import Code, RetakeError, StateError, VendorError
from retake.foreign_text import several_lines
from retake.music.actions import PipelineActions
from retake.music.database import Cursor
from retake.music.messages import PENDING
from retake.music.rows import PipelineRow
from retake.music.store import PipelineAction, UnknownPipeline, read_pipeline
from retake.music.tables import MAX_ID, messages, updates
from retake.operations.port import Refusal
from retake.runs.statements import Row
from retake.vendors.telegram import TelegramBot, TelegramUpdate, TextReply, parsed

KEEP_FOR = timedelta(days=5)
"""How long updates are kept. Telegram keeps undelivered updates for a day, and restarts its numbering after a week
without any."""

ANSWERED_WITHIN = timedelta(minutes=10)
"""How long answering a tap is retried; Telegram accepts answers for a shorter time."""

MAX_NOTE_LENGTH = 1000

_TAP = re.compile(r"ytpub_(retry|approve|cancel)_(\d{1,10})(?:_(\d{1,10}))?", re.ASCII)
_NOT_ALLOWED = "You are not among MUSIC.telegram_allowed_users."

_log = getLogger(__name__)


class TelegramOrder(NamedTuple):
    """The order in an update."""

    pipeline_id: int
    action: PipelineAction
    verb: str


class OrderEffect(NamedTuple):
    """The effect of an update; `new` is False for one that was on record."""

    row: PipelineRow | None = None
    action: PipelineAction | None = None
    new: bool = True


class TelegramInbox:
    """Takes updates. Thread-safe; several processes may take the same update. `chat_id` is the chat that gets the
    messages."""

    def __init__(
        self, actions: PipelineActions, bot: TelegramBot, allowed: Collection[int], chat_id: int | str | None = None
    ) -> None:
        self._actions, self._bot, self._allowed = actions, bot, frozenset(allowed)
        self._chat_id = chat_id
        self.database = actions.database

    @property
    def offset(self) -> int | None:
        """The next update to ask for, or None if none was taken recently. Raises StorageError."""
        recently = _recently(self.database.clock.now())
        with self.database.reading() as cursor:
            row = cursor.row(select(func.max(updates.c.update_id)).where(recently))
        return None if row is None or row[0] is None else int(row[0]) + 1

    def take(self, raw: object) -> None:
        """Do what an update asks for, once, and answer it. Accepts anything. Raises StorageError."""
        found = parsed(raw)
        if found is None:
            _log.warning("an update from Telegram cannot be read and is skipped")
            return
        effect = self._carried_out(found)
        if effect.row is not None and effect.action is not None:
            effect.action.after(self.database, effect.row)
        self._answer(self._taps(updates.c.update_id == found.update_id, again=not effect.new))

    def answer(self) -> None:
        """Answer the taps that have not been answered yet."""
        self._answer(self._taps(true()))

    def _taps(self, about: ColumnElement[bool], *, again: bool = False) -> list[Row]:
        """Return the taps to answer; with `again` including those already answered."""
        asked = about & updates.c.callback_id.is_not(None)
        if not again:
            asked &= updates.c.answered_at.is_(None)
        query = select(updates.c.update_id, updates.c.callback_id, updates.c.answer, updates.c.received_at)
        with self.database.reading() as cursor:
            return cursor.readable(query.where(asked).order_by(updates.c.update_id).limit(100))

    def _answer(self, taps: Iterable[Row]) -> None:
        for number, callback_id, text, received_at in taps:
            try:
                self._bot.answer_tap(callback_id, text or "")
            except VendorError as error:
                _log.warning("a tap could not be answered: %s", error)
                if not is_fatal(error) and self.database.clock.now() - received_at < ANSWERED_WITHIN:
                    continue
            self._mark_answered(number)

    def _mark_answered(self, update_id: int) -> None:
        with self.database.transaction() as cursor:
            changed = update(updates).where(updates.c.update_id == update_id)
            cursor.change(changed.values(answered_at=self.database.clock.now()))

    def _carried_out(self, found: TelegramUpdate) -> OrderEffect:
        """Carry out and record an update, unless it is on record; return its effect."""
        with self.database.transaction() as cursor:
            if not self._recorded(cursor, found):
                return OrderEffect(new=False)
            done = OrderEffect()
            try:
                order = self._order(cursor, found)
                if order is None:
                    answer = "There is nothing to do."
                else:
                    row = read_pipeline(cursor, order.pipeline_id, for_update=True)
                    row = self._actions.set(cursor, row, order.action.change(cursor, row))
                    done, answer = OrderEffect(row, order.action), _answer(order, row)
            except (Refusal, UnknownPipeline, StateError) as error:  # no change was made
                answer = str(error)
            cursor.change(update(updates).where(updates.c.update_id == found.update_id).values(answer=answer[:200]))
            return done

    def _recorded(self, cursor: Cursor, found: TelegramUpdate) -> bool:
        """Record an update, and return whether it is new. Delete updates too old to arrive again.

        An update that arrives again although it does not count for the offset was recorded by a wrong clock. It counts
        from now on, as Telegram would otherwise send it again and again.
        """
        now, callback_id = self.database.clock.now(), found.tap.id if found.tap else None
        values = {"update_id": found.update_id, "callback_id": callback_id, "received_at": now}
        if cursor.add(updates, values) is None:
            known = update(updates).where(updates.c.update_id == found.update_id, ~_recently(now))
            cursor.change(known.values(received_at=now))
            return False
        cursor.change(delete(updates).where(updates.c.received_at < now - KEEP_FOR))
        return True

    def _order(self, cursor: Cursor, found: TelegramUpdate) -> TelegramOrder | None:
        """Return the order in the update, or None. Raises Refusal."""
        if found.tap is None and found.reply is None:
            return None
        if found.user_id not in self._allowed:
            _log.warning("a Telegram user who is not in MUSIC.telegram_allowed_users was refused: %s", found.user_id)
            raise Refusal(_NOT_ALLOWED)
        if found.tap:
            return self._of_tap(found.tap.data)
        assert found.reply
        return self._of_reply(cursor, found.reply)

    def _of_tap(self, data: str) -> TelegramOrder | None:
        tap = _TAP.fullmatch(data)
        if tap is None or int(tap[2]) > MAX_ID:
            return None
        verb, pipeline_id, job = tap[1], int(tap[2]), int(tap[3] or 0)
        if verb == "retry":
            return TelegramOrder(pipeline_id, self._actions.retrying(), verb)
        if verb == "approve":
            return TelegramOrder(pipeline_id, self._actions.approving(job=job), verb)
        return TelegramOrder(pipeline_id, self._actions.cancelling(job=job), verb)

    def _of_reply(self, cursor: Cursor, reply: TextReply) -> TelegramOrder | None:
        numbered = self._chat_id is not None and not str(self._chat_id).startswith("@")
        if numbered and str(reply.chat_id) != str(self._chat_id):  # message ids are unique only within a chat
            return None
        about = (messages.c.message_id == reply.to_message_id) & (messages.c.event == PENDING)
        last = messages.c.id.desc()  # a group that became a supergroup restarts its message ids
        row = cursor.row(select(messages.c.pipeline_id, messages.c.job_id).where(about).order_by(last).limit(1))
        note = several_lines(reply.text).strip()[:MAX_NOTE_LENGTH]
        if row is None or not note:
            return None
        return TelegramOrder(row[0], self._actions.sending_back(note, job=row[1]), "feedback")


def _answer(order: TelegramOrder, row: PipelineRow) -> str:
    """Return the answer to a tap: the step that starts."""
    return f"#{row.id} is cancelled" if order.verb == "cancel" else f"#{row.id}: {row.step} begins"


def _recently(now: datetime) -> ColumnElement[bool]:
    """Return the condition for updates taken recently, by a clock that was right."""
    return (updates.c.received_at > now - KEEP_FOR) & (updates.c.received_at < now + KEEP_FOR)


def is_fatal(error: RetakeError) -> bool:
    """Return whether the same request would be refused again, because of its content and not of the bot or the chat."""
    return isinstance(error, VendorError) and error.code in (Code.INVALID_INPUT, Code.REJECTED)
