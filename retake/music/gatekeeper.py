"""The gate before the API: the key is checked, and the body read within limits, before anything else happens."""

from retake.serving.body import (
    MAX_BODY_BYTES,
    Application,
    Message,
    Receive,
    Send,
    TooLarge,
    bearer,
    refuse,
    secret_matches,
    with_whole_body,
)

MAX_UPDATE_BYTES = 1_048_576  # bytes; far above what Telegram sends, since it repeats what is refused


class Gatekeeper:
    """Passes a request on to `application` with its whole body, or responds 401, 403, 408 or 413.

    Below `prefix` the header must be "Authorization: Bearer " with the key. At `hook`, if given, the header
    X-Telegram-Bot-Api-Secret-Token must be `hook_secret`. Both are compared in constant time.
    """

    def __init__(
        self, application: Application, *, prefix: str, key: str, hook: str | None = None, hook_secret: str = ""
    ) -> None:
        self._application, self._prefix, self._hook = application, prefix, hook
        self._key, self._hook_secret = key.encode(), hook_secret.encode()

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._application(scope, receive, send)
        headers, path = dict(scope["headers"]), scope["path"]
        hooked, needs_key = path == self._hook, path == self._prefix or path.startswith(f"{self._prefix}/")
        if needs_key and not secret_matches(bearer(headers), self._key):
            unauthorized = "the header Authorization: Bearer does not have the key of MUSIC_API_KEY"
            return await refuse(send, 401, unauthorized, (b"www-authenticate", b"Bearer"))
        if hooked and not secret_matches(headers.get(b"x-telegram-bot-api-secret-token", b""), self._hook_secret):
            return await refuse(send, 403, "the header X-Telegram-Bot-Api-Secret-Token is missing or wrong")
        try:
            await with_whole_body(
                self._application, scope, receive, send, MAX_UPDATE_BYTES if hooked else MAX_BODY_BYTES
            )
        except TooLarge:
            if hooked:  # no update is that large, and Telegram would repeat it for ever
                return await refuse(send, 200, "ignored: too large")
            return await refuse(send, 413, f"the body is larger than {MAX_BODY_BYTES} bytes")
