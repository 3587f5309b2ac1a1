"""Schemathesis reads /openapi.json and sends what fits it and what does not: no answer is a 5xx, and each answer is one
of the description's."""

import os
import random

import pytest
import schemathesis
from api_world import KEY, ApiWorld
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

SEED = int(os.environ.get("RETAKE_SEED", "0")) or random.randrange(1, 2**31)
EXAMPLES = 20  # of each call, half of them as described
CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]
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
    print(f"RETAKE_SEED={SEED}")  # noqa: T201 (shown where the test fails)
    for state in STATES:
        number = api.put(state, failed_reason="publish: the upload broke")
        api.keep(number, "cover-1.png", b"picture")
    description = schemathesis.openapi.from_url(f"{api.base}/openapi.json")
    assert sorted(CALLS) == sorted(
        f"{it.ok().method.upper()} {it.ok().path}" for it in description.get_all_operations()
    )
    method, _, path = call.partition(" ")
    operation = description[path][method]
    modes = schemathesis.GenerationMode
    known = st.sampled_from(range(1, len(STATES) + 1))

    @seed(SEED)
    @settings(
        max_examples=EXAMPLES,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(
        case=st.one_of(operation.as_strategy(modes.POSITIVE), operation.as_strategy(modes.NEGATIVE)),
        number=st.one_of(st.none(), known, known),
    )
    def send(case: schemathesis.Case, number: int | None) -> None:
        if number and "pipeline_id" in case.path_parameters:
            case.path_parameters["pipeline_id"] = number
        headers = {"Authorization": f"Bearer {KEY}"}
        case.call_and_validate(headers=headers, checks=CHECKS, timeout=20)

    send()
