"""The graphs that ComfyUI executes: what is filled in, and what a file must have."""

import json
from pathlib import Path
from typing import Any

import pytest

from retake.data import packaged_file
from retake.errors import SettingsError
from retake.images.graphs import FILES, PLACEHOLDERS, load_graphs
from retake.images.jobs import ImageJob, JobStatus, JobType, TextRequest
from retake.sandbox import comfyui_graph

JOB = ImageJob(
    "0d7c3f39-5f0e-4d5c-9c67-0a4a0b8d2a11",
    JobStatus.PENDING,
    text=TextRequest('a "fox" {{seed}} \\ \n', "{{prompt}}", ("soft", "{{steps}}"), 512, 768, 30, 2**53 - 1),
)


def texts(graph: dict[str, Any]) -> str:
    return json.dumps([node["inputs"] for node in graph.values()])


@pytest.fixture
def graphs_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Create an empty config/workflows in the current folder."""
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "config" / "workflows"
    folder.mkdir(parents=True)
    return folder


def test_numbers_are_numbers_and_what_was_asked_for_is_not_searched_for_placeholders() -> None:
    graph = load_graphs().of_text(JOB, 2)
    assert graph["2"]["inputs"]["text"] == 'a "fox" {{seed}} \\ \n, soft, {{steps}}'
    assert graph["3"]["inputs"]["text"] == "{{prompt}}"
    assert graph["4"]["inputs"] == {"width": 512, "height": 768, "batch_size": 1}
    assert (graph["5"]["inputs"]["seed"], graph["5"]["inputs"]["steps"]) == (2**53 - 1, 30)
    assert graph["7"]["inputs"]["filename_prefix"] == f"retake/{JOB.job_id}_2"


def test_both_graphs_are_what_comfyui_accepts() -> None:
    graphs = load_graphs()
    outfit = graphs.of_outfit(JOB, 1, "person.png", "garment.png")
    assert comfyui_graph.problem(graphs.of_text(JOB, 1), []) is None
    assert comfyui_graph.problem(outfit, ["person.png", "garment.png"]) is None
    assert comfyui_graph.problem(outfit, ["person.png"])
    assert "{{" not in texts(outfit)
    assert 0 <= outfit["11"]["inputs"]["seed"] < 2**53
    for graph in (graphs.text, outfit):
        for node in graph.values():
            links = [it for it in node["inputs"].values() if isinstance(it, list)]
            assert all(str(link[0]) in graph for link in links)


def test_the_graph_of_a_job_does_not_change_the_next_one() -> None:
    graphs = load_graphs()
    before = texts(graphs.text)
    graphs.of_text(JOB, 1)
    assert texts(graphs.text) == before


def test_a_graph_in_the_current_folder_counts(graphs_here: Path) -> None:
    graph = {"1": {"class_type": "SaveMe", "inputs": {it: f"<{{{{{it}}}}}>" for it in PLACEHOLDERS[JobType.TEXT]}}}
    (graphs_here / "text.json").write_text(json.dumps(graph))
    graphs = load_graphs()
    assert graphs.of_text(JOB, 1)["1"]["inputs"]["width"] == "<512>"
    assert graphs.outfit == json.loads(Path(packaged_file(FILES[JobType.OUTFIT])).read_text())


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("{", "not JSON"),
        ("[]", "no graph"),
        ("{}", "no graph"),
        ('{"nodes": []}', 'node "nodes" has no class_type. In ComfyUI, use "Export (API)"'),
        (
            '{"1": {"class_type": "X", "inputs": {"text": "{{prompt}}"}}}',
            "no input of any node has {{filename_prefix}}",
        ),
        ('{"1": {"class_type": "X"}, "1": {"class_type": "X"}}', "twice"),
    ],
)
def test_a_graph_that_cannot_be_used_is_named(graphs_here: Path, text: str, fault: str) -> None:
    (graphs_here / "text.json").write_text(text)
    (graphs_here / "outfit.json").write_text(text)
    with pytest.raises(SettingsError) as raised:
        load_graphs()
    lines = str(raised.value).split("\n")
    assert len(lines) == 2
    assert lines[0].startswith("config/workflows/text.json: ")
    assert lines[1].startswith("config/workflows/outfit.json: ")
    assert fault in lines[0]


def test_a_graph_that_cannot_be_read_is_named(graphs_here: Path) -> None:
    (graphs_here / "text.json").mkdir()
    with pytest.raises(SettingsError, match=r"^config/workflows/text.json: cannot be read \(Is a directory\)$"):
        load_graphs()


def test_a_placeholder_that_no_job_has_is_named(graphs_here: Path) -> None:
    names = [*PLACEHOLDERS[JobType.TEXT], "promt"]
    graph = {"1": {"class_type": "X", "inputs": {it: f"{{{{{it}}}}}" for it in names}}}
    (graphs_here / "text.json").write_text(json.dumps(graph))
    with pytest.raises(SettingsError, match=r"\{\{promt\}\} is nothing that a job has; possible are .*steps"):
        load_graphs()
