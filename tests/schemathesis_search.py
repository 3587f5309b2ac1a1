"""How Schemathesis tests a service: RETAKE_SEED repeats a run; each answer must match the API description."""

import os
import random
from collections.abc import Callable, Iterable
from typing import Any

import schemathesis
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis import strategies as st
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

SEED = int(os.environ.get("RETAKE_SEED", "0")) or random.randrange(1, 2**31)
EXAMPLES = 20  # of each call, half of them valid
CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]

_SETTINGS = settings(
    max_examples=EXAMPLES,
    deadline=None,
    database=None,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)


def sought(test: Callable[..., None]) -> Callable[..., None]:
    """Run a `given` test with EXAMPLES examples, repeatable through RETAKE_SEED."""
    print(f"RETAKE_SEED={SEED}")  # noqa: T201 (shown where the test fails)
    return seed(SEED)(_SETTINGS(test))


def calls_of(description: schemathesis.BaseSchema) -> dict[str, schemathesis.APIOperation]:
    """Return the operations of a description by "METHOD /path"."""
    found: Iterable[Any] = description.get_all_operations()
    return {f"{it.ok().method.upper()} {it.ok().path}": it.ok() for it in found}


def cases_of(operation: schemathesis.APIOperation) -> st.SearchStrategy[schemathesis.Case]:
    """Return requests that match the description, and some that do not."""
    modes = schemathesis.GenerationMode
    return st.one_of(operation.as_strategy(modes.POSITIVE), operation.as_strategy(modes.NEGATIVE))
