"""`images status` and `images dead` as an operator runs them, on real servers."""

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from local_servers import RunningServer
from schemas import check_answer
from service_world import NOWHERE, ServiceWorld
from worker_world import eventually

from retake.console.command import main
from retake.images import scripts
from retake.images.cleanup import CleanUp
from retake.images.dead_messages import DeadMessages
from retake.images.messages import DEAD_QUEUE, message_of
from retake.images.presence import Presence, WorkerPresence
from retake.images.table import JobTable
from retake.operations.port import Refusal
from retake.sandbox.comfyui import ComfySandbox

ROOT = Path(__file__).parents[2]


def environment(world: ServiceWorld, **more: str) -> dict[str, str]:
    """Return the variables that name the services of `world`."""
    return {
        "RETAKE_CONFIG": str(ROOT / "config" / "config.json"),
        "REDIS_URL": world.places.redis,
        "RABBITMQ_URL": world.places.rabbitmq,
        "DATABASE_URL": world.places.database,
        "NO_PROXY": "*",
        **more,
    }


def call(world: ServiceWorld, *words: str, **environ: str) -> Result:
    return CliRunner().invoke(main, ["images", *words], env=environment(world, **environ))


def asked(world: ServiceWorld, *words: str, code: int = 0, **environ: str) -> Any:
    result = call(world, *words, "--json", **environ)
    assert result.exit_code == code, result.output
    document = json.loads(result.stdout)
    if code == 0:
        check_answer(
            f"images {' '.join(it for it in words if it in ('status', 'dead', 'list', 'requeue', 'drop'))}", document
        )
    assert "hunter2" not in result.output
    return document


def dead(world: ServiceWorld, job_id: str) -> None:
    """Put the job's message where a worker's refusal puts it."""
    job = world.store.get(job_id)
    assert job
    world.broker.publish("TextExchange", "text", message_of(job))
    consumer = world.broker.consume("TextQueue")
    delivery = consumer.take(30)
    assert delivery
    delivery.nack(requeue=False)
    consumer.close()
    eventually(lambda: world.broker.depth(DEAD_QUEUE))


def wait_for_dead(world: ServiceWorld, number: int) -> None:
    """Wait until RabbitMQ counts returned messages, a moment later."""
    eventually(lambda: world.broker.depth(DEAD_QUEUE) == number)


# --- status ---------------------------------------------------------------------------------------------------------


def test_status_shows_jobs_queues_workers_and_comfyui(service_world: ServiceWorld) -> None:
    world = service_world
    world.job()
    world.ready()
    world.failed()
    world.broker.publish("OutfitExchange", "outfit", b"{}")
    worker = WorkerPresence("A", "TextQueue", "10.0.0.1:8090", True, "j", "2026-01-01T00:00:00+00:00", ("http://c:1",))
    Presence(world.store).tell(worker, 60)
    Presence(world.store).tell(WorkerPresence("B", "OutfitQueue", "h:1", job="k", waits="ComfyUI refuses\n"), 60)
    world.store.client.set("jobs:worker:C", "no JSON")
    with ComfySandbox() as comfyui:
        urls = f"{comfyui.url},http://127.0.0.1:1"
        found = asked(world, "status", RETAKE_COMFYUI_URLS=urls)
        text = call(world, "status", RETAKE_COMFYUI_URLS=urls).output
    assert found["sets"] == {"pending": 1, "ready": 1, "dispatcher_cache_processing": 0, "failed": 1}
    assert found["queues"] == {"TextQueue": 0, "OutfitQueue": 1}
    assert found["dead_messages"] == 0
    assert [(it["name"], it["consuming"], it["job"]) for it in found["workers"]] == [
        ("A", True, "j"),
        ("B", False, "k"),
    ]
    assert [it["waits"] for it in found["workers"]] == [None, "ComfyUI refuses\n"]
    assert [it["alive"] for it in found["comfyui"]] == [True, False]
    assert found["trouble"] == []
    assert "10.0.0.1:8090" in text
    assert "does not answer" in text
    assert "The job of B waits: ComfyUI refuses" in text
    Presence(world.store).forget("A")
    assert [it.name for it in Presence(world.store).all()] == ["B"]


def test_status_tells_which_service_is_away_without_passwords(service_world: ServiceWorld) -> None:
    world = service_world
    found = asked(world, "status", code=75, REDIS_URL=NOWHERE.redis)
    assert (found["sets"], found["workers"], found["dead_messages"]) == (None, None, 0)
    found = asked(world, "status", code=75, RABBITMQ_URL=NOWHERE.rabbitmq)
    assert (found["sets"]["pending"], found["queues"], found["dead_messages"]) == (0, None, None)
    assert len(found["trouble"]) == 1
    found = asked(world, "status", code=75, REDIS_URL=NOWHERE.redis, RABBITMQ_URL=NOWHERE.rabbitmq)
    assert len(found["trouble"]) == 2


@pytest.mark.parametrize(
    ("settings", "told"),
    [({}, "set IMAGES.comfyui_urls,"), ({"comfyui_discovery_url": "http://127.0.0.1:1"}, "leads to no ComfyUI server")],
)
def test_status_says_why_it_knows_no_comfyui(
    service_world: ServiceWorld, tmp_path: Path, settings: dict[str, str], told: str
) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"IMAGES": settings}))
    assert told in call(service_world, "status", RETAKE_CONFIG=str(tmp_path / "config.json")).output


def test_without_the_addresses_it_says_which_variables_to_set(service_world: ServiceWorld) -> None:
    result = call(service_world, "status", REDIS_URL="", RABBITMQ_URL="")
    assert result.exit_code == 78
    assert "REDIS_URL is not set" in result.output
    assert "RABBITMQ_URL is not set" in result.output


# --- dead messages --------------------------------------------------------------------------------------------------


def test_dead_messages_are_listed_with_their_jobs(service_world: ServiceWorld) -> None:
    world = service_world
    assert asked(world, "dead", "list") == {"dead_messages": []}
    failed = world.failed("no luck")
    dead(world, failed)
    world.broker.publish("DeadExchange", "", b"\xff{")
    wait_for_dead(world, 2)
    for _ in range(2):  # looking removes nothing
        first, second = asked(world, "dead", "list")["dead_messages"]
    assert (first["job"], first["queue"], first["reason"]) == (failed, "TextQueue", "rejected")
    assert (first["status"], first["error"], first["user_id"]) == ("failed", "no luck", "ann")
    assert second["job"].startswith("message-")
    assert second["status"] is None
    assert asked(world, "dead", "list", "--limit", "1")["dead_messages"] == [first]
    assert asked(world, "status")["dead_messages"] == 2
    assert "no luck" in call(world, "dead", "list").output


def test_a_requeued_job_begins_anew(table_world: ServiceWorld) -> None:
    world = table_world
    job_id = world.row()
    world.clock.sleep(31)
    world.sweeper().sweep()
    world.sent()
    world.claim(job_id)
    world.store.update(job_id, f"token {job_id}", 60, {"attempt": "3", "prompt_id": "p", "comfyui_server": "http://c"})
    world.store.end_failed(job_id, f"token {job_id}", "it broke")
    world.store.client.hset(job_id, "deaths", "2")
    dead(world, job_id)
    world.sweeper().sweep()
    assert world.row_status(job_id) == "failed"
    answer = asked(world, "dead", "requeue", job_id[:8])
    assert (answer["done"], answer["job"]) == ("requeue", job_id)
    job = world.store.get(job_id)
    assert job
    assert (job.status, job.error, job.attempts_before, job.attempt, job.comfyui_server) == ("pending", "", 3, 4, "")
    assert not world.store.fields(job_id).keys() & {"deaths", "ended_by", "prompt_id", "claim"}
    assert world.sets_of(job_id) == ["pending"]
    assert world.sent() == [job_id]
    wait_for_dead(world, 0)
    assert world.row_status(job_id) == "pending"
    world.ready(job_id)
    assert world.status(job_id) == "ready"


def failed_of_table(world: ServiceWorld) -> str:
    """Create a failed job of jobs2, with its message in DeadQueue."""
    job_id = world.row()
    world.clock.sleep(31)
    world.sweeper().sweep()
    world.sent()
    world.claim(job_id)
    world.store.end_failed(job_id, f"token {job_id}", "it broke")
    dead(world, job_id)
    world.sweeper().sweep()
    assert world.row_status(job_id) == "failed"
    return job_id


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_job_that_is_cleaned_up_while_it_is_requeued_is_not_done_again(
    table_world: ServiceWorld, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    world, requeue = table_world, table_world.store.requeue
    clean = CleanUp(world.store, world.bucket, world.table).clean
    job_id = failed_of_table(world)

    def cut(it: str) -> bool:
        done = requeue(it)
        clean(it)
        return done

    letters = DeadMessages(world.store, world.broker, world.table)
    message = letters.find(job_id)
    if when == "before":
        clean(job_id)
    else:
        monkeypatch.setattr(world.store, "requeue", cut)
    with pytest.raises(Refusal):
        letters.requeue(message)
    world.clock.sleep(31)
    world.sweeper().sweep()
    assert (world.status(job_id), world.row_status(job_id), world.sent()) == ("", "failed", [])


def test_a_job_of_jobs2_is_not_requeued_without_jobs2(table_world: ServiceWorld) -> None:
    world = table_world
    job_id = failed_of_table(world)
    assert "DATABASE_URL" in asked(world, "dead", "requeue", job_id, code=65, DATABASE_URL="")["error"]
    assert (world.status(job_id), world.row_status(job_id), world.sent()) == ("failed", "failed", [])
    wait_for_dead(world, 1)


def test_a_job_without_a_row_is_requeued_while_postgresql_is_away(service_world: ServiceWorld) -> None:
    world = service_world
    job_id = world.failed("no luck")
    dead(world, job_id)
    assert asked(world, "dead", "requeue", job_id, DATABASE_URL=NOWHERE.database)["job"] == job_id
    assert world.sent() == [job_id]


def test_a_job_whose_dead_message_somebody_has_just_removed_is_sent_all_the_same(service_world: ServiceWorld) -> None:
    world = service_world
    job_id = world.failed("no luck")
    dead(world, job_id)
    letters = DeadMessages(world.store, world.broker, None)
    message = letters.find(job_id)
    assert letters.drop(message) == 1
    letters.requeue(message)
    assert (world.status(job_id), world.sent()) == ("pending", [job_id])


def test_a_row_follows_its_requeued_job_though_a_sweeper_is_at_work(
    table_world: ServiceWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    world, requeue = table_world, table_world.store.requeue
    job_id = failed_of_table(world)

    def late(it: str) -> bool:
        world.sweeper().sweep()
        return requeue(it)

    monkeypatch.setattr(world.store, "requeue", late)
    letters = DeadMessages(world.store, world.broker, world.table)
    letters.requeue(letters.find(job_id))
    world.ready(job_id)
    world.sweeper().sweep()
    assert world.row_status(job_id) == "ready"


def test_what_cannot_be_requeued_is_refused(service_world: ServiceWorld) -> None:
    world = service_world
    gone, ready = world.failed(), world.ready()
    dead(world, gone)
    dead(world, ready)
    world.store.remove(gone)
    for job_id in (gone, ready):
        assert asked(world, "dead", "requeue", job_id, code=65)["error"]
    wait_for_dead(world, 2)
    assert world.sent() == []
    assert world.status(ready) == "ready"


def test_all_failed_jobs_can_be_requeued_at_once(service_world: ServiceWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    world = service_world
    monkeypatch.setattr("retake.images.dead_messages.MAX_EXAMINED", 2)  # so that it continues after the first ones
    first, second, third, ready = world.failed(), world.failed(), world.failed(), world.ready()
    for job_id in (first, first, second, third, ready):
        dead(world, job_id)
    wait_for_dead(world, 5)
    answer = asked(world, "dead", "requeue", "--all")
    assert [(it["id"], it["exit_code"]) for it in answer["results"]] == [(it, 0) for it in (first, second, third)]
    assert sorted(world.sent()) == sorted((first, second, third))
    assert [world.status(it) for it in (first, second, third, ready)] == ["pending"] * 3 + ["ready"]
    wait_for_dead(world, 1)
    assert asked(world, "dead", "requeue", "--all") == {"results": [], "done": 0, "exit_code": 0}


def test_a_search_past_a_thousand_missing_jobs_says_so(
    service_world: ServiceWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = service_world
    monkeypatch.setattr("retake.images.dead_messages.MAX_EXAMINED", 2)
    *gone, failed = [world.failed() for _ in range(3)]
    for job_id in (*gone, failed):
        dead(world, job_id)
    for job_id in gone:
        world.store.remove(job_id)
    wait_for_dead(world, 3)
    for wanted in (failed, "--all"):
        error = asked(world, "dead", "requeue", wanted, code=65)["error"]
        assert "only the oldest 2 were looked at: remove those of no use with images dead drop --gone" in error
    assert world.sent() == []
    asked(world, "dead", "drop", "--gone")
    wait_for_dead(world, 1)
    assert asked(world, "dead", "requeue", "--all")["done"] == 1
    assert world.sent() == [failed]


def test_messages_that_rabbitmq_has_yet_to_give_back_count_as_looked_at(
    service_world: ServiceWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def late(*_: object) -> None: ...

    world = service_world
    monkeypatch.setattr("retake.images.dead_messages.MAX_EXAMINED", 2)
    monkeypatch.setattr("retake.rabbit.broker.give_back", late)
    *gone, failed = [world.failed() for _ in range(3)]
    for job_id in (*gone, failed):
        dead(world, job_id)
    for job_id in gone:
        world.store.remove(job_id)
    for wanted in (failed, "--all"):
        wait_for_dead(world, 3)
        assert "only the oldest 2 were looked at" in asked(world, "dead", "requeue", wanted, code=65)["error"]


def test_one_that_fails_anew_while_all_are_requeued_is_left(
    service_world: ServiceWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = service_world
    job_id = world.failed()
    dead(world, job_id)
    letters = DeadMessages(world.store, world.broker, None)
    pull = world.broker.pull
    passes = 0

    def with_a_worker(queue: str, *given: Any) -> Any:
        nonlocal passes
        pulled = pull(queue, *given)
        if queue == DEAD_QUEUE and pulled:
            passes += 1
            assert passes < 3, "it never ends"
            world.sent()
            world.claim(job_id)
            world.store.end_failed(job_id, f"token {job_id}", "no luck again")
            dead(world, job_id)
        return pulled

    monkeypatch.setattr(world.broker, "pull", with_a_worker)
    assert letters.requeue_all() == {job_id: None}
    assert world.status(job_id) == "failed"
    wait_for_dead(world, 1)


def test_one_refusal_does_not_stop_the_others(table_world: ServiceWorld) -> None:
    world = table_world
    of_table, other = failed_of_table(world), world.failed()
    dead(world, other)
    wait_for_dead(world, 2)
    answer = asked(world, "dead", "requeue", "--all", code=65, DATABASE_URL="")
    assert [(it["id"], it["exit_code"]) for it in answer["results"]] == [(of_table, 65), (other, 0)]
    assert "DATABASE_URL" in answer["results"][0]["error"]
    assert world.sent() == [other]
    wait_for_dead(world, 1)


def test_several_are_named_in_one_command(service_world: ServiceWorld) -> None:
    world = service_world
    jobs = [world.failed() for _ in range(3)]
    for job_id in jobs:
        dead(world, job_id)
    wait_for_dead(world, 3)
    answer = asked(world, "dead", "requeue", *jobs[:2])
    assert (answer["done"], [it["job"] for it in answer["results"]]) == (2, jobs[:2])
    wait_for_dead(world, 1)
    answer = asked(world, "dead", "drop", jobs[2], "ffffffff", "--yes", code=65)
    assert [it["exit_code"] for it in answer["results"]] == [0, 65]
    wait_for_dead(world, 0)


@pytest.mark.parametrize("words", [("requeue",), ("requeue", "aaaa", "--all"), ("drop",), ("drop", "aaaa", "--gone")])
def test_either_jobs_or_all_are_named(service_world: ServiceWorld, words: tuple[str, ...]) -> None:
    result = call(service_world, "dead", *words)
    assert (result.exit_code, "Name JOB" in result.output) == (2, True)


def test_messages_without_a_use_are_dropped_at_once(
    service_world: ServiceWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = service_world
    monkeypatch.setattr("retake.images.dead_messages.MAX_EXAMINED", 2)
    gone, ready, failed = world.failed(), world.ready(), world.failed()
    for job_id in (gone, ready, failed):
        dead(world, job_id)
    world.broker.publish("DeadExchange", "", b"hello")  # an operator may want to look at this one
    world.store.remove(gone)
    wait_for_dead(world, 4)
    answer = asked(world, "dead", "drop", "--gone")
    assert sorted(it["job"] for it in answer["results"]) == sorted((gone, ready))
    wait_for_dead(world, 2)
    assert {it.name for it in DeadMessages(world.store, world.broker, None).all()} >= {failed}


@pytest.mark.parametrize("name", ["abc", "ffffffff", "*", "\udcff" * 5])
def test_an_invalid_name_is_refused(service_world: ServiceWorld, name: str) -> None:
    dead(service_world, service_world.failed())
    assert asked(service_world, "dead", "drop", name, "--yes", code=65)["exit_code"] == 65
    wait_for_dead(service_world, 1)


def test_a_beginning_that_several_have_is_refused(service_world: ServiceWorld) -> None:
    for number in range(2):
        world_job = f"aaaaaaaa-0000-4000-8000-00000000000{number}"
        service_world.broker.publish("DeadExchange", "", json.dumps({"job_id": world_job}).encode())
    assert "several" in asked(service_world, "dead", "drop", "aaaa", code=65)["error"]
    wait_for_dead(service_world, 2)
    assert asked(service_world, "dead", "drop", "aaaaaaaa-0000-4000-8000-000000000001")["done"] == "drop"
    wait_for_dead(service_world, 1)


def test_dropping_a_failed_job_wants_agreement_and_leaves_the_job(service_world: ServiceWorld) -> None:
    world = service_world
    job_id = world.failed()
    dead(world, job_id)
    assert "--yes" in asked(world, "dead", "drop", job_id, code=65)["error"]
    wait_for_dead(world, 1)
    assert asked(world, "dead", "drop", job_id, "--yes")["job"] == job_id
    wait_for_dead(world, 0)
    assert world.sets_of(job_id) == ["failed"]
    world.clock.sleep(1000)
    world.sweeper().sweep()
    assert world.keys() == []


def test_a_message_that_names_no_job_can_be_dropped(service_world: ServiceWorld) -> None:
    service_world.broker.publish("DeadExchange", "", b"hello")
    [message] = asked(service_world, "dead", "list")["dead_messages"]
    wait_for_dead(service_world, 1)
    assert asked(service_world, "dead", "drop", message["job"])["job"] == message["job"]
    assert asked(service_world, "dead", "list") == {"dead_messages": []}


def test_a_requeue_that_dies_before_its_message_is_sent_is_swept(
    service_world: ServiceWorld, rabbit_server: RunningServer
) -> None:
    world = service_world
    job_id = world.failed()
    assert world.store.requeue(job_id)
    world.clock.sleep(31)
    world.sweeper().sweep()
    assert world.sent() == [job_id]
    assert world.store.client.scard(scripts.PENDING) == 1


@pytest.mark.parametrize("deleted", [False, True], ids=["kept", "deleted"])
def test_a_row_follows_its_job_though_the_requeue_died_before_it_came_to_the_row(
    table_world: ServiceWorld, monkeypatch: pytest.MonkeyPatch, deleted: bool
) -> None:
    world, reopen = table_world, JobTable.reopen
    job_id = failed_of_table(world)
    assert world.store.requeue(job_id)

    def late(table: JobTable, it: str) -> None:
        if deleted:
            CleanUp(world.store, world.bucket, world.table).clean(it)
        reopen(table, it)

    monkeypatch.setattr(JobTable, "reopen", late)
    world.clock.sleep(31)
    world.sweeper().sweep()
    if deleted:
        assert (world.status(job_id), world.row_status(job_id), world.sent()) == ("", "failed", [])
        return
    assert (world.sent(), world.row_status(job_id)) == ([job_id], "pending")
    world.ready(job_id)
    world.sweeper().sweep()
    assert world.row_status(job_id) == "ready"


def test_a_requeue_after_one_that_died_says_that_the_job_is_under_way(service_world: ServiceWorld) -> None:
    world = service_world
    job_id = world.failed("no luck")
    dead(world, job_id)
    assert world.store.requeue(job_id)
    world.claim(job_id)
    answer = asked(world, "dead", "requeue", job_id)
    assert answer["what"] == f"{job_id} is under way already"
    wait_for_dead(world, 0)
