"""The application of a service: how many requests are answered at once, and a description that needs no network."""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

from anyio.to_thread import current_default_thread_limiter
from fastapi import FastAPI

import retake


def described_app(title: str, description: str, *, threads: int) -> FastAPI:
    """Return an application with /docs and /openapi.json that answers `threads` requests at the same time."""
    from fastapi_offline import FastAPIOffline  # which is not there where only the dashboard is installed

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
    """Return the lifespan of an application whose plain functions run in so many threads."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        current_default_thread_limiter().total_tokens = threads
        yield

    return lifespan
