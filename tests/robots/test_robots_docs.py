"""docs/robots.md agrees with the policies and the code, and says nothing else."""

import os
import random
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from protocol_robots import POLICIES

from retake.alerts.store import BoardStore
from retake.bucket.memory import MemoryBucket
from retake.clock import FakeClock, SystemClock
from retake.errors import RobotError
from retake.retrying.guard import Call
from retake.retrying.policy import RetryPolicy
from retake.retrying.state_store import MemoryStateStore
from retake.robots import saga
from retake.robots.action_sink import RecordingSink
from retake.robots.alert_sink import AlertPlace, AlertSink
from retake.robots.degraded import may_run
from retake.robots.execution import Ports
from retake.robots.fallback import Stores
from retake.robots.follow_ups import ACTIONS, FILTER, Do
from retake.robots.locks import Locks
from retake.robots.outbox import Outbox
from retake.robots.policies import POLICIES as POLICIES_FOLDER
from retake.robots.policies import PolicyError, RobotPolicy, load_policies
from retake.robots.recovery import STEPS, StepName
from retake.robots.repeats import REPEATS
from retake.robots.robot import Result, Robot
from retake.robots.sections import SECTIONS
from retake.robots.snapshots import Snapshots
from retake.settings.schema import Field, Rule, Schema
from retake.story.settings import load_settings

PAGE = (Path(__file__).parents[2] / "docs" / "robots.md").read_text(encoding="utf-8")
ROWS = [line for line in PAGE.splitlines() if line.startswith("| `")]


def row(*cells: object) -> str:
    return f"| {' | '.join(str(cell) for cell in cells)} |"


def seconds(values: Iterator[float]) -> str:
    return ", ".join(f"{value:g}" for value in values)


def waits(retry: RetryPolicy) -> str:
    shown = retry.max_retries if retry.max_retries is not None else 10
    text = seconds(min(retry.backoff.delay_s(number), retry.ceiling_s or 1e9) for number in range(1, shown + 1))
    return text if retry.max_retries is not None else f"{text}, then {retry.ceiling_s:g} for ever"


def conditions(retry: RetryPolicy) -> str:
    repeated = [f"class {it.value}" for it in sorted(retry.retry_if.classes)]
    repeated += [f"`{code}`" for code in sorted(retry.retry_if.codes)]
    excepted = [f"`{code}`" for code in sorted(retry.retry_if.except_codes)]
    return ", ".join(repeated) + (f"; not {', '.join(excepted)}" if excepted else "")


def robot_row(policy: RobotPolicy) -> str:
    jitter = f"± {policy.retry.jitter_percent} %" if policy.retry.jitter_percent else "none"
    return row(f"`{policy.id}`", policy.name, waits(policy.retry), jitter, conditions(policy.retry))


def key_rows(section: str, schema: Schema) -> Iterator[str]:
    for key, it in schema.fields.items():
        yield row(f"`{section}.{key}`", allowed(it), f"{it.meaning}.")


def allowed(it: Field) -> str:
    return it.rule.allowed if isinstance(it.rule, Rule) else "list of tables, not empty"


@pytest.mark.parametrize("robot", POLICIES)
def test_a_row_says_how_each_robot_repeats(robot: str) -> None:
    assert robot_row(POLICIES[robot]) in ROWS


@pytest.mark.parametrize("section", SECTIONS)
def test_each_key_of_a_section_has_its_row(section: str) -> None:
    assert [line for line in ROWS if line.startswith(f"| `{section}.")] == list(key_rows(section, SECTIONS[section]))


def test_each_key_of_the_repeats_has_its_row() -> None:
    first, *_ = REPEATS.schemas.values()
    own = {key for schema in REPEATS.schemas.values() for key in schema.fields}
    shared = {key for key in own if all(key in schema.fields for schema in REPEATS.schemas.values())}
    rows = [line for line in ROWS if line.startswith("| `retry.")]
    names = " or ".join(f'"{name}"' for name in REPEATS.schemas)
    assert rows == [
        row("`retry.strategy`", names, "how the delays grow."),
        *(row(f"`retry.{key}`", allowed(it), f"{it.meaning}.") for key, it in first.fields.items() if key in shared),
    ]


def test_each_strategy_has_its_row_with_its_numbers() -> None:
    first, *_ = REPEATS.schemas.values()
    for name, schema in REPEATS.schemas.items():
        own = [f"`{key}`" for key in schema.fields if key not in first.fields or key == "interval_s"]
        (line,) = (line for line in ROWS if line.startswith(f"| `{name}` |"))
        assert line.split(" | ")[1] == (", ".join(own) or "none")


@pytest.mark.parametrize("do", Do)
def test_each_action_has_its_row_with_its_keys(do: Do) -> None:
    (line,) = (line for line in ROWS if line.startswith(f"| `{do}` |"))
    own = [f"`{key}`" for key in ACTIONS.schemas[do].fields if key not in FILTER]
    assert line.split(" | ")[1] == (", ".join(own) or "none")


@pytest.mark.parametrize("step", StepName)
def test_each_step_of_a_recovery_has_its_row(step: StepName) -> None:
    (line,) = (line for line in ROWS if line.startswith(f"| `{step}` |"))
    own = [f"`{key}`" for key in STEPS.schemas[step].fields if key not in FILTER]
    assert line.split(" | ")[1] == (", ".join(own) or "none")


def test_no_row_is_about_something_that_is_not_there() -> None:
    known = {*POLICIES, *Do, *StepName, *REPEATS.schemas}
    names = [line.split("`")[1] for line in ROWS]
    assert {name for name in names if name.partition(".")[0] not in {*SECTIONS, "retry"}} == known
    assert len(set(ROWS)) == len(ROWS)


def test_the_example_works_as_it_stands() -> None:
    example = PAGE.partition("```python\n")[2].partition("```")[0]
    given: dict[str, Any] = {it.__name__: it for it in (load_policies, Robot, Ports, SystemClock, random)}
    given |= {"random": random, "saga": saga}
    given |= {"sink": RecordingSink(), "work": lambda call: f"attempt {call.attempt}"}
    exec(example, given)  # noqa: S102  our own page
    assert given["result"] == Result("attempt 1", (), 1)


def test_the_example_of_the_alerts_works_as_it_stands(monkeypatch: pytest.MonkeyPatch) -> None:
    example = PAGE.partition("\n## Alerts\n")[2].partition("```python\n")[2].partition("```")[0]
    monkeypatch.setenv("RETAKE_CONFIG", str(Path(__file__).parents[2] / "config" / "config.json"))
    bucket, clock = MemoryBucket(), FakeClock()

    def work(call: Call) -> None:
        raise RobotError("ERR_TEMPORARY_APPIUS_UNAVAILABLE", "APPIUS does not answer")

    given: dict[str, Any] = {it.__name__: it for it in (AlertSink, AlertPlace, load_settings, Robot, Ports, os, random)}
    given |= {"policies": load_policies(), "bucket": bucket, "clock": clock, "journal": RecordingSink(), "work": work}
    exec(example, given)  # noqa: S102  our own page
    assert [it.key for it in BoardStore(bucket, clock).read().alerts.values()] == ["robot_failed/NR.NSI.1"]


def test_the_examples_of_the_pieces_work_as_they_stand() -> None:
    section = PAGE.partition("\n## Pieces for the work\n")[2].partition("\n## ")[0]
    examples = [it.partition("```")[0] for it in section.split("```python\n")[1:]]
    assert len(examples) == section.count("\n### ") == 6
    influx, clock, log = [ConnectionError("away")], FakeClock(), list[str]()

    def influx_put(key: str, value: object) -> None:
        if influx:
            raise influx[0]

    def fail(call: Call) -> None:
        raise RobotError("ERR_TEMPORARY_API_TIMEOUT", "no answer")

    given: dict[str, Any] = {it.__name__: it for it in (load_policies, Robot, Ports)}
    given |= {it.__name__: it for it in (Locks, Outbox, Snapshots, Stores)}
    given |= {name: partial(log.append, name) for name in ("reserve", "release", "link", "unlink")}
    given |= {"store": MemoryStateStore(), "bucket": MemoryBucket(), "elsewhere": MemoryBucket(), "clock": clock}
    given |= {"random": random, "saga": saga}
    given |= {"sink": RecordingSink(), "fetch": lambda call: {"length": 12}, "fail": fail}
    given |= {"influx_put": influx_put, "redis_put": lambda key, value: None, "influx_is_back": influx.clear}
    for example in examples:
        exec(example, given)  # noqa: S102  our own page
    assert given["result"].cached_age_s == pytest.approx(3612, abs=0.15 * 12)
    assert log == ["reserve", "link"]
    assert given["version"] == 1


@pytest.mark.parametrize("mode", range(4))
def test_the_table_of_modes_has_the_robots_that_run(mode: int) -> None:
    (line,) = (line for line in PAGE.splitlines() if line.startswith(f"| {mode}, "))
    running = [robot for robot in POLICIES if may_run(robot, mode)]
    expected = {len(POLICIES): "all", 0: "none"}.get(len(running), ", ".join(f"`{robot}`" for robot in running))
    assert line.split(" | ")[1].removesuffix(" |") == expected


def test_the_faults_that_it_shows_are_what_the_loader_says(tmp_path: Path) -> None:
    for file in POLICIES_FOLDER.glob("*.toml"):
        text = file.read_text("utf-8")
        (tmp_path / file.name).write_text(
            text.replace("max_retries = 3 #", "max_retires = 3 #") if "1." in file.name else text
        )
    with pytest.raises(PolicyError) as caught:
        load_policies(tmp_path)
    shown = PAGE.rpartition("```\nconfig/policies/")[2].partition("```")[0].split("\n")[:2]
    for line, said in zip(shown, str(caught.value).split("\n"), strict=False):
        begins, _, ends = line.removeprefix("config/policies/").partition("…")
        assert begins in said
        assert said.endswith(ends)
