"""Weakened rules of the lease, one at a time, in the real code: the seven of lease_model.py and two more.

Each lets two processes hold the lease, or a token be used twice. A simulation must notice every one.
"""

from collections.abc import Callable
from typing import Any

import pytest
from claim_sim import Bounds

from retake.bucket.claims import lease, names, protocol
from retake.bucket.claims.lease import ClaimLease
from retake.bucket.claims.protocol import ClaimVerdict

Mutation = Callable[[pytest.MonkeyPatch], None]


def no_second_listing(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(protocol, "_alone", lambda *given: [])


def earliest_stamp_wins(patch: pytest.MonkeyPatch) -> None:
    def judge(stem: Any, mine: str, records: list[Any], now: float, terms: Any) -> ClaimVerdict:
        ours = min((it.stamp, stem.nonce) for it in records if it.name == mine)
        others = names.live([it for it in records if it.name != mine], now, terms)
        return ClaimVerdict.WITHDRAW if any((it.stamp, it.nonce) < ours for it in others) else ClaimVerdict.HOLD

    patch.setattr(protocol, "judge", judge)


def no_skew_margin(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(names, "dead_after", lambda terms: terms.ttl_s)


def deadline_from_the_answer(patch: pytest.MonkeyPatch) -> None:
    claim = protocol._claim

    def late(*given: Any) -> Any:
        made = claim(*given)
        return made._replace(sent=made.answered)

    patch.setattr(protocol, "_claim", late)


def late_renewal_counts(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ClaimLease, "_counts", lambda self: True)


def claim_deleted_on_release(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ClaimLease, "_end", lambda self: True)


def token_not_compared(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(protocol, "not_below", lambda records, token: [])


def renewal_deadline_from_the_answer(patch: pytest.MonkeyPatch) -> None:
    look = ClaimLease._look

    def late(self: ClaimLease, *given: Any) -> None:
        self._sent = self._clock.mark()
        look(self, *given)

    patch.setattr(ClaimLease, "_look", late)


def script_trusts_its_handover(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(lease.JoinedLease, "check", lambda self: None)


PLAIN, SKEWED = Bounds(), Bounds(ttl=4, skew=2, horizon=30)

MUTATIONS: dict[Mutation, Bounds] = {
    no_second_listing: PLAIN,
    earliest_stamp_wins: PLAIN,
    no_skew_margin: SKEWED,
    deadline_from_the_answer: PLAIN,
    late_renewal_counts: PLAIN,
    claim_deleted_on_release: PLAIN,
    token_not_compared: PLAIN,
    renewal_deadline_from_the_answer: PLAIN,
    script_trusts_its_handover: PLAIN._replace(scripts=True),
}
