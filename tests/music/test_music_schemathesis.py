"""Schemathesis reads /openapi.json and sends valid and invalid requests: no answer is a 5xx, and each answer matches
the description."""

import pytest
import schemathesis
from api_world import KEY, ApiWorld
from hypothesis import given
from hypothesis import strategies as st
from schemathesis_search import CHECKS, calls_of, cases_of, sought

STATES = ("cover_pending", "failed", "awaiting_manual", "review_pending", "published")
CALLS = [
    *("GET /health", "GET /api/music/pipeline", "POST /api/music/pipeline", "GET /api/music/pipeline/{pipeline_id}"),
    "GET /api/music/pipeline/{pipeline_id}/media/{name}",
    *(
        f"POST /api/music/pipeline/{{pipeline_id}}/{it}"
        for it in ("approve", "feedback", "publish", "cancel", "retry", "resolve")
    ),
]


@pytest.mark.parametrize("call", CALLS)
def test_no_request_makes_the_service_fail(api: ApiWorld, call: str) -> None:
    for state in STATES:
        number = api.put(state, failed_reason="publish: the upload broke")
        api.keep(number, "cover-1.png", b"picture")
    operations = calls_of(schemathesis.openapi.from_url(f"{api.base}/openapi.json"))
    assert sorted(CALLS) == sorted(operations)
    known = st.sampled_from(range(1, len(STATES) + 1))

    @sought
    @given(
        case=cases_of(operations[call]),
        number=st.one_of(st.none(), known, known),
    )
    def send(case: schemathesis.Case, number: int | None) -> None:
        if number and "pipeline_id" in case.path_parameters:
            case.path_parameters["pipeline_id"] = number
        headers = {"Authorization": f"Bearer {KEY}"}
        case.call_and_validate(headers=headers, checks=CHECKS, timeout=20)

    send()
