"""What a lease needs from a store without locks: a consistent listing, and small immutable objects.

Names are relative to `.retake/` below the bucket's prefix, where no key can be. They consist of letters, digits and
`/ . - _ ~ %`, have at most 400 bytes and are used unquoted.
"""

from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import NamedTuple, Protocol

from retake.bucket.side_by_side import side_by_side
from retake.errors import StorageError


class Stamped(NamedTuple):
    """One object in a listing. A name appears once for each version that the store keeps."""

    name: str
    stamp: float  # seconds since the epoch when it was stored, by the store's clock


class Claims(NamedTuple):
    """A listing of claims."""

    found: tuple[Stamped, ...]
    date: float | None  # seconds since the epoch when the store answered, by its clock; None if it does not say


class ClaimStore(Protocol):
    """The claims in a store. Used by one thread at a time.

    Every method may raise StorageError, after seconds rather than minutes.
    """

    @property
    def conditional(self) -> bool:
        """Whether the store honours create-if-absent: probed, never guessed from the vendor's name."""
        ...

    def claims(self, prefix: str) -> Claims:
        """List all names that begin with `prefix`. Every claim whose `claim` returned before must be in it."""
        ...

    def claim(self, name: str) -> float:
        """Store a small object under `name` in one attempt, and return its stamp.

        Also raises StorageError if the answer is lost: the object may then be stored, now or later. The stamp may be
        early by as much as two clocks of the store differ, and never belongs to a later version of the same name.
        """
        ...

    def claim_if_absent(self, name: str, nonce: str) -> bool:
        """Store `nonce` under `name` if nothing exists there, and return whether it is stored. Only if `conditional`.

        A refusal (412, 409) or a lost answer may be caused by our own request: what is there is read and compared.
        Raises StorageError if that fails.
        """
        ...

    def nonce(self, name: str) -> str | None:
        """Return what `claim_if_absent` stored under `name`, or None. Only if `conditional`."""
        ...

    def withdraw(self, name: str) -> None:
        """Remove every version stored under `name`. It is not an error if there is none."""
        ...

    def withdraw_all(self, names: Sequence[str]) -> None:
        """Remove what is stored under `names`, in any order. Raises nothing: what remains must do no harm."""
        ...


class FarClaims:
    """A mixin for a `ClaimStore` with slow requests that several threads may send: withdraws claims concurrently."""

    def withdraw(self, name: str) -> None:
        """See `ClaimStore.withdraw`."""
        raise NotImplementedError

    def withdraw_all(self, names: Sequence[str]) -> None:
        """See `ClaimStore.withdraw_all`."""
        side_by_side([partial(self._attempt, name) for name in names])

    def _attempt(self, name: str) -> None:
        with suppress(StorageError):
            self.withdraw(name)
