"""A late sender: what it delivered is recorded, and its successor's claim stays."""

from delivery_world import DELIVERED, DeliveryWorld, cause

from retake.alerts.outbox import abandoned, claimed, progressed, released


def test_a_sender_that_answers_after_its_time_leaves_the_next_ones_claim() -> None:
    world = DeliveryWorld()
    world.look(cause("a"), cause("b"))
    first = claimed(world.board, world.settings, world.clock.now())
    world.later(20)
    second = claimed(first.board, world.settings, world.clock.now())
    (late,), (mine,) = first.claims, second.claims
    assert world.settings.timeout_seconds < 20
    results = {late.deliveries[0].id: DELIVERED}
    for board in (
        released(second.board, late, results, world.settings, world.clock.now()),
        progressed(second.board, late, late.deliveries[0].id, DELIVERED, world.settings, world.clock.now()),
    ):
        assert [it.title for it in board.channels["all"].queue] == ["b fails"]
        assert board.channels["all"].sending_until == mine.until
        assert claimed(board, world.settings, world.clock.now()).claims == ()


def test_what_is_delivered_after_nobody_waited_any_more_is_not_sent_again() -> None:
    world = DeliveryWorld()
    world.look(cause("a"), cause("b"))
    made = claimed(world.board, world.settings, world.clock.now())
    (claim,) = made.claims
    left = abandoned(made.board, "all", world.settings, world.clock.now())
    board = progressed(left, claim, claim.deliveries[0].id, DELIVERED, world.settings, world.clock.now())
    assert [it.title for it in board.channels["all"].queue] == ["b fails"]
    assert board.channels["all"].sending_until == claim.until
