"""compose.yaml and the Dockerfile agree with the code. Docker is not needed."""

import re
import shlex
from fnmatch import fnmatch
from importlib import import_module
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import click
import pytest
from ruamel.yaml import YAML

from retake.images.api_process import GRACE_S
from retake.images.settings import ENVIRONMENT, load_images_settings

ROOT = Path(__file__).parents[2]
COMPOSE = YAML(typ="safe").load((ROOT / "compose.yaml").read_text("utf-8"))
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
OURS = [name for name, service in SERVICES.items() if "build" in service]
DOCKERFILE = (ROOT / "Dockerfile").read_text("utf-8")
PORTS = {"redis": 6379, "rabbitmq": 5672, "postgres": 5432}
"""The ports on which the servers' images listen."""


def parsed(name: str) -> dict[str, Any]:
    """Return the options of a service, as click parses its command line, without running it."""
    module, *arguments = SERVICES[name]["command"]
    entry = {"retake": "retake.console.command", "retake.sandbox": "retake.sandbox.__main__"}[module]
    command: click.Command = import_module(entry).main
    while isinstance(command, click.Group):
        found = command.get_command(click.Context(command), arguments[0])
        assert found is not None, arguments
        command, arguments = found, arguments[1:]
    return command.make_context(name, list(arguments)).params


def environment(name: str) -> dict[str, str]:
    """Return the variables of a service when the caller has set only the required ones."""
    given = SERVICES[name].get("environment", {})
    filled = {key: re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", value) for key, value in given.items()}
    return {key: re.sub(r"\$\{\w+:\?[^}]*\}", "demo=a-key", value) for key, value in filled.items()}


def test_it_runs_all_parts() -> None:
    assert set(SERVICES) == {*PORTS, "comfyui", "api", "text-worker", "outfit-worker"}
    assert set(OURS) == set(SERVICES) - set(PORTS)


@pytest.mark.parametrize("name", OURS)
def test_each_command_exists_and_its_port_is_probed(name: str) -> None:
    options = parsed(name)
    assert options["host"] == "0.0.0.0"  # noqa: S104  in a container of its own
    urls = re.findall(r"http://[^']+", SERVICES[name]["healthcheck"]["test"][-1])
    assert [urlsplit(url).port for url in urls] == [options["port"]]
    assert f"'{urls[0]}'" in SERVICES[name]["healthcheck"]["test"][-1]
    compile(SERVICES[name]["healthcheck"]["test"][-1], "healthcheck", "exec")


@pytest.mark.parametrize("name", ["api", "text-worker", "outfit-worker"])
def test_the_variables_are_those_that_the_code_reads_and_it_takes_their_values(name: str) -> None:
    variables = environment(name)
    assert set(variables) == set(ENVIRONMENT)
    settings = load_images_settings(
        {**variables, "RETAKE_CONFIG": str(ROOT / "config/config.json")}, tuple(ENVIRONMENT)
    )
    for url, server in zip(settings.places, ("redis", "rabbitmq", "postgres"), strict=True):
        assert (urlsplit(url).hostname, urlsplit(url).port) == (server, PORTS[server])
    assert [urlsplit(url).hostname for url in settings.images.comfyui_urls] == ["comfyui"]
    assert urlsplit(settings.images.comfyui_urls[0]).port == parsed("comfyui")["port"]
    assert [user for user, _ in settings.keys] == ["demo"]


def test_users_and_passwords_match_those_of_the_servers() -> None:
    urls = {key: urlsplit(value) for key, value in environment("api").items() if key.endswith("_URL")}
    rabbit, postgres = SERVICES["rabbitmq"]["environment"], SERVICES["postgres"]["environment"]
    assert urls["RABBITMQ_URL"].username == rabbit["RABBITMQ_DEFAULT_USER"]
    assert urls["RABBITMQ_URL"].password == rabbit["RABBITMQ_DEFAULT_PASS"]
    assert urls["DATABASE_URL"].username == postgres["POSTGRES_USER"]
    assert urls["DATABASE_URL"].password == postgres["POSTGRES_PASSWORD"]
    assert urls["DATABASE_URL"].path == f"/{postgres['POSTGRES_DB']}"


def test_only_the_api_is_published_and_only_here() -> None:
    published = {name: service["ports"] for name, service in SERVICES.items() if "ports" in service}
    assert published == {"api": [f"127.0.0.1:8080:{parsed('api')['port']}"]}


def test_redis_keeps_what_it_accepted() -> None:
    told = " ".join(SERVICES["redis"]["command"])
    assert "--appendonly yes --appendfsync always" in told
    assert "--maxmemory-policy noeviction" in told


@pytest.mark.parametrize(("name", "queue"), [("text-worker", "TextQueue"), ("outfit-worker", "OutfitQueue")])
def test_a_worker_has_the_time_to_finish_its_job(name: str, queue: str) -> None:
    assert parsed(name)["queue"] == queue
    assert int(SERVICES[name]["stop_grace_period"].removesuffix("s")) > parsed(name)["drain"]


def test_the_api_has_the_time_to_finish_open_requests() -> None:
    assert int(SERVICES["api"]["stop_grace_period"].removesuffix("s")) > GRACE_S


def test_everything_waits_for_servers_that_are_healthy_and_comes_back() -> None:
    for name, service in SERVICES.items():
        assert service["restart"] == "unless-stopped", name
        assert service["healthcheck"]["test"][0] == "CMD", name
        for other, how in service.get("depends_on", {}).items():
            assert how == {"condition": "service_healthy"}, name
            assert "healthcheck" in SERVICES[other], name
    assert all(set(SERVICES[name]["depends_on"]) == set(PORTS) for name in OURS if name != "comfyui")


def test_data_are_on_volumes_and_the_files_on_one_for_all() -> None:
    mounted = [mount.partition(":") for service in SERVICES.values() for mount in service.get("volumes", ())]
    assert {name for name, _, _ in mounted} == set(COMPOSE["volumes"])
    bucket = environment("api")["IMAGES_STORAGE_URL"].removeprefix("file:")
    files = {place for name, _, place in mounted if name == "files"}
    assert len(files) == 1
    assert Path(bucket).is_relative_to(*files)
    assert f"--group=retake {next(iter(files))}\n" in DOCKERFILE  # the user that it runs as may write there


def test_the_image_has_what_is_copied_and_installs_only_what_is_pinned() -> None:
    copied = [line.split()[1] for line in DOCKERFILE.splitlines() if line.startswith("COPY ")]
    assert all((ROOT / name).exists() for name in copied)
    kept = [line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")]
    assert sorted(kept) == sorted(copied)
    (install,) = re.findall(r"RUN (pip install .*)", DOCKERFILE)
    assert "--require-hashes" in shlex.split(install)
    assert "requirements.txt" in copied
    (base,) = re.findall(r"^FROM (.*)", DOCKERFILE, re.MULTILINE)
    assert fnmatch(base, "python:3.1[1-9]-slim")
