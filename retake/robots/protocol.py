"""What a robot's policy implies: its policies for creation and batches, and how long its work is deferred and taken."""

from collections.abc import Iterable

from retake.retrying.policy import LONGEST_S
from retake.robots.batch import BatchItem
from retake.robots.batch_plan import BatchPolicy
from retake.robots.creation import CreationPolicy
from retake.robots.deferred import LEASE_S
from retake.robots.follow_ups import Do, FollowUp
from retake.robots.idempotency import key_of
from retake.robots.policies import RobotPolicy
from retake.robots.recovery import CORRECTED_RETRY_S


def creation_policy(policy: RobotPolicy) -> CreationPolicy:
    """Return how the robot creates one item. Raises ValueError for a robot that does not look before it creates."""
    if policy.idempotency is None or not policy.idempotency.check_before_create:
        raise ValueError(f"{policy.id} does not look before it creates: its policy has no [idempotency] that says so")
    existing = [action.when.codes for action in _named(policy, Do.RETURN_EXISTING)]
    read_only = _named(policy, Do.READ_ONLY)
    undone = [action.after_s for action in _named(policy, Do.ROLL_BACK)]
    created = CreationPolicy(frozenset().union(*existing), read_only_after=None)
    if read_only:
        created = created._replace(read_only_after=read_only[0].failures_in_a_row, read_only_if=read_only[0].when)
    created = created._replace(
        check_before_retry=policy.idempotency.check_before_retry,
        if_none_match=policy.idempotency.if_none_match,
        key_from_data=policy.idempotency.key_from == "data",
    )
    return created._replace(confirm_within_s=undone[0]) if undone else created


def keyed(policy: RobotPolicy, items: Iterable[BatchItem]) -> list[BatchItem]:
    """Return the items of a batch with their keys: their own, or made from their data, as the policy says.

    Raises ValueError for an item without a key, and for data that are not JSON.
    """
    if policy.idempotency and policy.idempotency.key_from == "data":
        return [item._replace(key=key_of(item.data)) for item in items]
    found = list(items)
    if any(not item.key.strip() for item in found):
        raise ValueError(f"{policy.id} takes the idempotency key from the item, and one of the items has none")
    return found


def batch_policy(policy: RobotPolicy) -> BatchPolicy:
    """Return how the robot creates many items. Raises ValueError for a robot without batches."""
    if policy.batch is None or policy.item_retry is None:
        raise ValueError(f"{policy.id} makes no batches: its policy has no [batch]")
    return BatchPolicy(
        batch=policy.retry,
        item=policy.item_retry,
        size=policy.batch.size,
        roll_back_above_percent=policy.batch.rollback_over_percent if policy.batch.partial_success else 0.0,
        split_codes=frozenset(policy.batch.split_after),
        check_before_retry=policy.idempotency is None or policy.idempotency.check_before_retry,
    )


def longest_deferral_s(policy: RobotPolicy) -> float:
    """Return the longest time in seconds for which the robot defers work."""
    return max([CORRECTED_RETRY_S, *(action.after_s for action in _named(policy, Do.DEFERRED_RETRY))])


def longest_lease_s(policy: RobotPolicy) -> float:
    """Return the seconds for which a process keeps deferred work that it has taken, counted from its last attempt."""
    retry = policy.retry
    if retry.max_retries is None:
        longest = LONGEST_S if retry.ceiling_s is None else retry.ceiling_s
    else:
        longest = max((retry.bounds_s(repeat)[1] for repeat in range(1, retry.max_retries + 1)), default=0.0)
    return max(LEASE_S, 2 * longest)


def _named(policy: RobotPolicy, do: Do) -> list[FollowUp]:
    compensation = policy.compensation.actions if policy.compensation else ()
    return [action for action in (*policy.last_failure.actions, *compensation) if action.do is do]
