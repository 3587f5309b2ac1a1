"""A person's side of Telegram and YouTube, for tests and demos. Both classes talk to a sandbox over HTTP, in this
process or another, and raise OSError if it does not answer."""

import json
import urllib.request
from typing import Any


class TelegramPhone:
    """The Telegram app of a user who talks to the bot in the sandbox at `url`."""

    def __init__(self, url: str) -> None:
        self._url = f"{url}/sandbox/telegram"

    def messages(self) -> list[dict[str, Any]]:
        """Return the bot's messages, in order: `message_id`, `chat`, `text`, and `reply_markup` with the buttons."""
        return list(self._ask("messages"))

    def answers(self) -> list[dict[str, Any]]:
        """Return the bot's answers to taps: `callback_query_id`, `text`."""
        return list(self._ask("answers"))

    def unconfirmed(self) -> list[dict[str, Any]]:
        """Return the updates that the bot has not confirmed."""
        return list(self._ask("updates"))

    def tap(self, data: str, *, from_id: int = 1, message_id: int | None = None) -> str:
        """Tap a button with `data`; return the id of the query that the bot should answer.

        With a webhook, every method that makes an update returns once the webhook has answered.
        """
        fields = {"data": data, "from_id": from_id, "message_id": message_id}
        return str(self._ask("tap", fields)["callback_query_id"])

    def reply(self, text: str, *, to: int, from_id: int = 1) -> None:
        """Reply to the message with the id `to`."""
        self._ask("reply", {"text": text, "reply_to_message_id": to, "from_id": from_id})

    def push(self, update: dict[str, Any]) -> None:
        """Make exactly this update, readable or not; only an `update_id` is added if it has none."""
        self._ask("update", update)

    def deliver(self) -> int:
        """Send the unconfirmed updates to the webhook again; return how many remain."""
        return int(self._ask("deliver", {})["pending"])

    def _ask(self, name: str, fields: dict[str, Any] | None = None) -> Any:
        return json.loads(_exchange(f"{self._url}/{name}", None if fields is None else json.dumps(fields).encode()))


class YouTubeStudio:
    """The channel as its owner sees it, in the sandbox at `url`."""

    def __init__(self, url: str) -> None:
        self._url = f"{url}/sandbox/youtube"

    def videos(self) -> list[dict[str, Any]]:
        """Return the videos, oldest first: `id`, `title`, `description`, `tags`, `categoryId`, `status`, `size`, and
        the number of `thumbnails` that were set."""
        return list(json.loads(self._get("videos")))

    def sessions(self) -> list[dict[str, Any]]:
        """Return the upload sessions: `id`, `total`, `received`, and `video_id` once complete."""
        return list(json.loads(self._get("sessions")))

    def video(self, video_id: str) -> bytes:
        """Return a video as it was uploaded."""
        return self._get(f"video?id={video_id}")

    def thumbnail(self, video_id: str) -> bytes:
        """Return the thumbnail that was set last."""
        return self._get(f"thumbnail?id={video_id}")

    def expire_sessions(self) -> None:
        """Make YouTube forget every session started so far (404 from now on); their videos stay."""
        self._get("expire", b"")

    def _get(self, name: str, body: bytes | None = None) -> bytes:
        return _exchange(f"{self._url}/{name}", body)


def _exchange(url: str, body: bytes | None) -> bytes:
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with direct.open(url, body, timeout=60) as reply:
        return bytes(reply.read())
