"""The doctor's checks of vendors: a free request to each, by the client that the steps use."""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

from retake.errors import ErrorClass, RetakeError, VendorError
from retake.exit_codes import ExitCode
from retake.operations.finding import Finding, fault, of_error, ok, warn
from retake.operations.words import span
from retake.settings.shared import Workflow
from retake.vendors import Health, Healthy, Quota

PATIENCE_S = 15.0
"""The time limit of these requests in seconds, whatever that of a step is."""


class VendorClient(NamedTuple):
    """A vendor to be checked. `open()` returns its client, a `retake.vendors.Healthy`."""

    name: str
    open: Callable[[], Any]


def patient(workflow: Workflow) -> Workflow:
    """Return the settings with the time limit of these requests, if that of a step is longer."""
    return workflow._replace(call_timeout_seconds=min(PATIENCE_S, workflow.call_timeout_seconds))


def vendor_checks(clients: Sequence[VendorClient], *, test_request: bool) -> Iterator[Finding]:
    """Check all vendors concurrently."""
    with ThreadPoolExecutor(max(1, len(clients))) as pool:
        yield from pool.map(lambda it: health_check(*it), clients)
        if test_request:
            yield from pool.map(lambda it: tried_check(*it), clients)


def health_check(name: str, client: Callable[[], Healthy]) -> Finding:
    """Return what the vendor says about the account. `client()` returns its client."""
    try:
        health = client().health()
    except VendorError as error:
        return _fault_of(name, error)
    except RetakeError as error:
        return of_error(name, error)
    facts = {"quotas": [quota._asdict() for quota in health.quotas]}
    if doubts := [*health.doubts, *_of_clock(health.clock_ahead_s)]:
        return warn(name, _describe_health(health), "; ".join(doubts), **facts)
    return ok(name, _describe_health(health), **facts)


def tried_check(name: str, client: Callable[[], Healthy]) -> Finding:
    """Return the result of a step's call about a task that does not exist."""
    check = f"test request, {name}"
    try:
        return ok(check, client().test_request())
    except VendorError as error:
        return _fault_of(check, error)
    except RetakeError as error:
        return of_error(check, error)


def _fault_of(name: str, error: VendorError) -> Finding:
    """Return an error as a fault. A critical one (class C) needs a person; a temporary one may be over soon."""
    if error.error_class is ErrorClass.CRITICAL:
        return fault(
            name, str(error), "do what the message says; until then every call fails", ExitCode.CONFIG, code=error.code
        )
    return fault(name, str(error), "try again in a minute", code=error.code)


def _describe_health(health: Health) -> str:
    return "; ".join([health.says, *filter(None, map(_quota, health.quotas))])


def _of_clock(ahead_s: float) -> Iterator[str]:
    if ahead_s:
        far = f"{span(60.0 * round(abs(ahead_s) / 60))} {'behind' if ahead_s > 0 else 'ahead of'}"
        yield f"this machine's clock is {far} the vendor's: set it (NTP): days and delays depend on it"


def _quota(quota: Quota) -> str:
    if quota.left is None:
        return ""
    of = f" of {quota.limit:,.10g}" if quota.limit is not None else ""
    return f"{quota.left:,.10g}{of} {quota.name} left"
