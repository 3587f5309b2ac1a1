"""The grammar of orders."""

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retake.sandbox.orders import CREATING, FAULTS, KINDS, YOUTUBE, Order, Span, VendorFault, parse_order

spans = st.tuples(st.integers(1, 500), st.integers(0, 50)).map(lambda pair: Span(pair[0], pair[0] + pair[1]))
faults = st.one_of(
    st.sampled_from(sorted(FAULTS)).map(VendorFault),
    st.builds(
        VendorFault,
        st.just("status"),
        status=st.integers(400, 599),
        html=st.booleans(),
        seconds=st.just(0.0),
        reason=st.just(""),
    ),
    st.builds(
        VendorFault,
        st.just("status"),
        status=st.integers(400, 599),
        html=st.just(False),
        seconds=st.just(0.0),
        reason=st.sampled_from(("quotaExceeded", "rateLimitExceeded")),
    ),
    st.builds(
        VendorFault,
        st.just("slow"),
        status=st.just(0),
        html=st.just(False),
        seconds=st.integers(0, 9999).map(lambda hundredths: hundredths / 100),
        reason=st.just(""),
    ),
)


def _possible(order: Order) -> bool:
    if order.fault.reason:
        return order.kind in YOUTUBE
    return order.kind in CREATING or order.fault.name not in ("no-id", "task-failed", "task-rejected", "never-ends")


orders = st.builds(Order, st.sampled_from(KINDS), faults, st.lists(spans, max_size=4).map(tuple)).filter(_possible)


@given(orders)
def test_an_order_survives_being_written_and_read(order: Order) -> None:
    assert parse_order(str(order)) == order


@given(st.text(max_size=40))
def test_any_text_is_an_order_or_a_value_error(text: str) -> None:
    with suppress(ValueError):
        assert isinstance(parse_order(text), Order)


@pytest.mark.parametrize(
    ("text", "calls"),
    [
        ("imagine=500", [1, 2, 3, 4, 5]),
        ("imagine#2=500", [2]),
        ("imagine#2-4=500", [2, 3, 4]),
        ("imagine#1,4-5=500", [1, 4, 5]),
    ],
)
def test_calls_are_counted_from_one(text: str, calls: list[int]) -> None:
    assert [n for n in range(1, 6) if parse_order(text).meets(n)] == calls


def test_a_refusal_by_youtube_may_have_a_reason() -> None:
    order = parse_order("thumbnail#1=403-quotaExceeded")
    assert (order.fault.status, order.fault.reason, order.fault.html) == (403, "quotaExceeded", False)
    assert parse_order(str(order)) == order
    assert str(parse_order("upload.put#2=cut-midway")) == "upload.put#2=cut-midway"


def test_spaces_do_not_matter() -> None:
    assert parse_order(" upscale #1 - 2 , 4 = 502-html ") == parse_order("upscale#1-2,4=502-html")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("upscale", "KIND"),
        ("upscael=500", "upscael"),
        ("upscale=200", "200"),
        ("upscale=600", "600"),
        ("upscale#0=500", "'0'"),
        ("upscale#=500", "''"),
        ("upscale#3-1=500", "write 1-3"),
        ("upscale#one=500", "'one'"),
        ("upscale=slow=-1", "slow=-1"),
        ("upscale=explode", "cut-after"),
        ("fetch=no-id", "imagine, upscale, runway"),
        ("chat=task-failed", "imagine, upscale, runway"),
        ("upload.ask=cut-midway", "upload.put"),
        ("chat=403-quotaExceeded", "thumbnail"),
        ("thumbnail=403-html-quotaExceeded", "403-html-quotaExceeded"),
    ],
)
def test_a_bad_order_says_what_is_wrong_and_what_is_possible(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=r"possible|Kinds|write|counted") as refusal:
        parse_order(text)
    assert said in str(refusal.value)
