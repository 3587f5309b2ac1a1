"""A process of the service with Telegram: a rig, and the loops that send messages and take updates, a turn at a
time."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rig import Rig

from retake.music.background import poll_loop
from retake.music.outbox import TelegramOutbox
from retake.music.rows import PipelineRow
from retake.music.telegram import TelegramInbox
from retake.serving.loop import Loop
from retake.vendors.telegram import TelegramBot

ME, STRANGER = 1, 666


class Desk:
    """A process of the service: a rig with its Telegram loops."""

    def __init__(self, url: str, folder: Path, **shared: Any) -> None:
        self.rig = Rig(url, folder, **shared)
        self.phone = self.rig.sandbox.telegram
        self.bot = TelegramBot("1:sandbox", f"{self.rig.sandbox.url}/telegram", 25.0)
        self.outbox = TelegramOutbox(self.rig.database, self.bot, 42, "me")
        self.begin()

    def begin(self) -> None:
        """Restart the process."""
        self.rig.begin()
        self.inbox = TelegramInbox(self.rig.actions, self.bot, [ME], 42)
        self.polling = poll_loop(self.bot, self.inbox, "me", 0)

    def poll(self) -> float:
        return turn_of(self.polling)

    def pending(self, step: str = "meta", **values: Any) -> tuple[PipelineRow, int]:
        """Return a pipeline whose `step` waits for approval, and the id of the message about it."""
        row = self.rig.begun(step, **values)
        self.rig.settle()
        self.outbox.send(30)
        assert self.rig.get(row).state == f"{step}_pending"
        return self.rig.get(row), int(self.phone.messages()[-1]["message_id"])

    def failed(self) -> PipelineRow:
        """Return a pipeline that has failed at its video."""
        row = self.rig.begun("video", audio="missing.wav")
        self.rig.settle()
        assert self.rig.get(row).state == "failed"
        return self.rig.get(row)

    def answers(self) -> list[str]:
        return [str(it["text"]) for it in self.phone.answers()]

    def state(self, row: PipelineRow) -> str:
        return self.rig.get(row).state


def turn_of(loop: Loop) -> float:
    """Do one turn of a loop in this thread, and return its pause."""
    return loop._turn()


def buttons(message: Mapping[str, Any]) -> list[str]:
    markup = message.get("reply_markup") or {}
    return [button["callback_data"] for line in markup.get("inline_keyboard", []) for button in line]
