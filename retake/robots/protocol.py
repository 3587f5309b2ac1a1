"""What a robot's policy comes to for the rooms of retake.retrying that carry it out."""

from retake.retrying.batch_plan import BatchPolicy
from retake.retrying.creation import CreationPolicy
from retake.robots.follow_ups import Do, FollowUp
from retake.robots.policies import RobotPolicy


def creation_policy(policy: RobotPolicy) -> CreationPolicy:
    """How the robot creates one thing. Raises ValueError for a robot that does not look before it creates."""
    if policy.idempotency is None or not policy.idempotency.check_before_create:
        raise ValueError(f"{policy.id} does not look before it creates: its policy has no [idempotency] that says so")
    existing = [action.when.codes for action in _named(policy, Do.RETURN_EXISTING)]
    read_only = [action.failures_in_a_row for action in _named(policy, Do.READ_ONLY)]
    undone = [action.after_s for action in _named(policy, Do.ROLL_BACK)]
    created = CreationPolicy(frozenset().union(*existing), read_only[0] if read_only else None)
    return created._replace(confirm_within_s=undone[0]) if undone else created


def batch_policy(policy: RobotPolicy) -> BatchPolicy:
    """How the robot makes many things. Raises ValueError for a robot that makes them one by one."""
    if policy.batch is None or policy.item_retry is None:
        raise ValueError(f"{policy.id} makes no batches: its policy has no [batch]")
    return BatchPolicy(
        batch=policy.retry,
        item=policy.item_retry,
        size=policy.batch.size,
        roll_back_above_percent=policy.batch.rollback_over_percent if policy.batch.partial_success else 0.0,
        split_codes=frozenset(policy.batch.split_after),
    )


def _named(policy: RobotPolicy, do: Do) -> list[FollowUp]:
    compensation = policy.compensation.actions if policy.compensation else ()
    return [action for action in (*policy.last_failure.actions, *compensation) if action.do is do]
