"""Whether a vendor is there, takes the key, and what it tells of the account: by a question that costs nothing."""

from typing import NamedTuple, Protocol, runtime_checkable


class Quota(NamedTuple):
    """Something that the vendor counts."""

    name: str  # «credits», «videos of gen4_turbo today»
    left: float | None  # None: the vendor does not say
    limit: float | None = None


class Health(NamedTuple):
    """A vendor that answered and took the key."""

    says: str  # what it answered, in words
    quotas: tuple[Quota, ...] = ()
    doubts: tuple[str, ...] = ()  # what will be in the way of a paid call all the same


@runtime_checkable
class Healthy(Protocol):
    """A client that can ask how its vendor is."""

    def health(self) -> Health:
        """What the vendor tells of the account. Free: nothing is ordered, nothing is billed. Raises PollFailed,
        classified like any other."""
        ...

    def test_request(self) -> str:
        """The question that each tick asks, about a task that nobody made: what came of it, in words. Free. Raises
        PollFailed."""
        ...


NOBODYS = "00000000-0000-0000-0000-000000000000"
"""The id of a task that nobody made."""

KNOWN_AS_NOBODYS = "it knows no such task, as it should"
