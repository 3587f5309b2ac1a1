"""The requests that are still open when a service has to end."""

import asyncio

from retake.serving.body import Application, Message, Receive, Send, refuse


def with_last_answers(application: Application) -> Application:
    """Return the application with an answer for each request that the server cancels at its end: 503.

    The server's own would be 500, which means a bug. An answer that has begun is cut off.
    """

    async def answering(scope: Message, receive: Receive, send: Send) -> None:
        begun = False

        async def noted(message: Message) -> None:
            nonlocal begun
            begun = True
            await send(message)

        try:
            await application(scope, receive, noted)
        except asyncio.CancelledError:
            if scope["type"] != "http":
                raise
            if not begun:
                await refuse(send, 503, "this server is stopping; try again", (b"retry-after", b"5"))

    return answering
