"""The application of a service: how many requests it answers concurrently, and API docs that need no network."""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

from anyio.to_thread import current_default_thread_limiter
from fastapi import FastAPI

import retake


def described_app(title: str, description: str, *, threads: int) -> FastAPI:
    """Return an application with /docs and /openapi.json that answers up to `threads` requests concurrently."""
    from fastapi_offline import FastAPIOffline  # not installed if only the dashboard is

    return FastAPIOffline(
        title=title,
        version=retake.__version__,
        description=description,
        redoc_url=None,
        redirect_slashes=False,
        strict_content_type=False,
        lifespan=with_threads(threads),
    )


def with_threads(threads: int) -> Callable[[FastAPI], AbstractAsyncContextManager[None]]:
    """Return a lifespan that runs the application's synchronous functions in up to `threads` threads."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        current_default_thread_limiter().total_tokens = threads
        yield

    return lifespan
