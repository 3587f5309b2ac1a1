"""Leases in the database, for what one process does at a time: polling Telegram for updates, sending messages."""

from datetime import timedelta

from sqlalchemy import bindparam, select, update

from retake.music.database import MusicDatabase
from retake.music.tables import leases

_AHEAD = timedelta(hours=1)
"""A lease that lasts longer than this was written by a wrong clock."""


def take_lease(database: MusicDatabase, name: str, holder: str, seconds: float) -> bool:
    """Take or renew the lease for `seconds`; return whether `holder` has it now. Raises StorageError.

    A lease that cannot be read, or that was written by a clock far ahead, is taken over.
    """
    now = database.clock.now()
    with database.transaction() as cursor:
        cursor.add(leases, {"name": name, "holder": "", "until": now})
        row = next(iter(cursor.readable(_HELD, {"wanted": name}, name="lease")), None)
        if row and row[0] not in ("", holder) and now < row[1] < now + max(_AHEAD, 2 * timedelta(seconds=seconds)):
            return False
        values = {"holder": holder, "until": now + timedelta(seconds=seconds)}
        cursor.change(update(leases).where(leases.c.name == name).values(values))
        return True


def release_leases(database: MusicDatabase, holder: str) -> None:
    """Release all leases of `holder`, which has ended its work. Raises StorageError."""
    with database.transaction() as cursor:
        cursor.change(update(leases).where(leases.c.holder == holder).values(holder=""))


_HELD = select(leases.c.holder, leases.c.until).where(leases.c.name == bindparam("wanted")).with_for_update()
