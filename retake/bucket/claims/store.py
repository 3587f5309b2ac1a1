"""What the lease needs of a store that has no locks: one listing that is true, and small objects that never change.

Names are relative to a place of the store's own below «.retake/» in the bucket's prefix (where no key of the bucket
can lie); they hold letters, digits and «/ . - _ ~ %», are at most 400 bytes long and are used as they are.
"""

from typing import NamedTuple, Protocol


class Stamped(NamedTuple):
    """One object of a listing. A name comes once for each version that the store keeps of it."""

    name: str
    stamp: float  # seconds since the epoch when it was stored, by the store's clock


class Claims(NamedTuple):
    """An answer to «which claims are there»."""

    found: tuple[Stamped, ...]
    date: float | None  # seconds since the epoch when it was answered, by the store's clock; None if it does not say


class ClaimStore(Protocol):
    """Every method may raise StorageError, after seconds rather than minutes. Used by one thread at a time."""

    @property
    def conditional(self) -> bool:
        """Whether create-if-absent is honoured: tried out, never guessed from the vendor's name."""
        ...

    def claims(self, prefix: str) -> Claims:
        """What is stored under names that begin with `prefix`, all of it: every claim answered before must be there."""
        ...

    def claim(self, name: str) -> float:
        """Store a small object under `name`, in one attempt, and return its stamp.

        Raises StorageError also when the answer is lost: it may be stored, now or later. The stamp may be early by as
        much as two clocks of the store may differ, and never is one of a later version of the same name.
        """
        ...

    def claim_if_absent(self, name: str, nonce: str) -> bool:
        """Store `nonce` under `name` if nothing is there yet; whether what is there now is ours. Only if `conditional`.

        A refusal (412, 409) and a lost answer may both be our own doing: what is there is read and compared.
        Raises StorageError if that cannot be found out.
        """
        ...

    def nonce(self, name: str) -> str | None:
        """What `claim_if_absent` stored under `name`; None if nothing is there. Only if `conditional`."""
        ...

    def withdraw(self, name: str) -> None:
        """Remove what is stored under `name`, every version of it. Nothing there is no error."""
        ...
