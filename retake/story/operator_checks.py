"""The doctor's checks of the vendors: each is asked something that costs nothing, by the client that the steps use."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from retake.errors import ErrorClass, RetakeError, VendorError
from retake.keys import Keys
from retake.operations.finding import Finding, fault, of_error, ok, warn
from retake.story.clients import RealVendors
from retake.story.settings import Settings
from retake.vendors.health import Health, Healthy, Quota

PATIENCE_S = 15.0
"""Seconds that a vendor may take here, whatever a step would give it."""


def vendor_checks(settings: Settings, keys: Keys, *, test_request: bool) -> Iterator[Finding]:
    """All vendors at the same time. One whose key is missing is not asked: that is told already."""
    timeout_s = min(PATIENCE_S, settings.workflow.call_timeout_seconds)
    quick = settings._replace(workflow=settings.workflow._replace(call_timeout_seconds=timeout_s))
    vendors = RealVendors(quick, keys)
    clients: dict[str, tuple[str, Callable[[], Any]]] = {
        f"pictures ({settings.midjourney.provider})": ("midjourney", vendors.midjourney),
        "videos (runway)": ("runway", vendors.video_generator),
        "texts (chat API)": ("openai", vendors.writer),
    }
    asked = {name: client for name, (key, client) in clients.items() if getattr(keys, key)}
    with ThreadPoolExecutor(len(clients)) as pool:
        yield from pool.map(lambda name: _health(name, asked[name]), asked)
        if test_request:
            yield from pool.map(lambda name: _tried(name, asked[name]), asked)


def _health(name: str, client: Callable[[], Healthy]) -> Finding:
    try:
        health = client().health()
    except VendorError as error:
        return _unwell(name, error)
    except RetakeError as error:
        return of_error(name, error)
    facts = {"quotas": [quota._asdict() for quota in health.quotas]}
    if health.doubts:
        return warn(name, _told(health), "; ".join(health.doubts), **facts)
    return ok(name, _told(health), **facts)


def _tried(name: str, client: Callable[[], Healthy]) -> Finding:
    check = f"test request, {name}"
    try:
        return ok(check, client().test_request())
    except VendorError as error:
        return _unwell(check, error)
    except RetakeError as error:
        return of_error(check, error)


def _unwell(name: str, error: VendorError) -> Finding:
    """Class C needs a person before anything works; what is temporary may be over with the next look."""
    if error.error_class is ErrorClass.CRITICAL:
        return fault(name, str(error), "do what the message says; until then every call fails", 78, code=error.code)
    return fault(name, str(error), "look again in a minute", code=error.code)


def _told(health: Health) -> str:
    return "; ".join([health.says, *filter(None, map(_quota, health.quotas))])


def _quota(quota: Quota) -> str:
    if quota.left is None:
        return ""
    of = f" of {quota.limit:g}" if quota.limit is not None else ""
    return f"{quota.left:,.10g}{of} {quota.name} left"
