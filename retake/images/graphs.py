"""The graphs that ComfyUI executes: config/workflows/text.json and outfit.json, filled in with the request of a job.

A graph is in ComfyUI's API format ("Export (API)"). A text like "{{prompt}}" among the inputs of its nodes is a
placeholder: on its own it is replaced by the value with its type, within a longer text by the value as text. Values are
not searched for placeholders.
"""

import json
import os
import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple
from uuid import UUID

from retake.data import default_file
from retake.errors import SettingsError
from retake.images.jobs import MAX_SEED, ImageJob, JobType
from retake.settings.reader import read_file
from retake.strict_json import parse, what_is_wrong

Graph = dict[str, Any]

FILES = {JobType.TEXT: "config/workflows/text.json", JobType.OUTFIT: "config/workflows/outfit.json"}
"""Where each graph is read from, relative to the current folder; if it is missing, the one that comes with Retake is
used."""

PLACEHOLDERS = {
    JobType.TEXT: frozenset({"prompt", "negative_prompt", "width", "height", "steps", "seed", "filename_prefix"}),
    JobType.OUTFIT: frozenset({"person_image", "garment_image", "seed", "filename_prefix"}),
}
"""The placeholders that a graph must contain, each at least once, and no others."""

_PLACEHOLDER = re.compile(r"\{\{([a-z_]{1,40})\}\}", re.ASCII)


class Graphs(NamedTuple):
    """The graphs of both job types, validated."""

    text: Graph
    outfit: Graph

    def of_text(self, job: ImageJob, attempt: int) -> Graph:
        """Return the graph of a text job. The styles are appended to the prompt, after commas."""
        asked = job.text
        prompt = ", ".join([asked.prompt, *asked.styles])
        more = {"prompt": prompt, "filename_prefix": file_prefix(job.job_id, attempt)}
        return filled(self.text, {**asked._asdict(), **more})

    def of_outfit(self, job: ImageJob, attempt: int, person: str, garment: str) -> Graph:
        """Return the graph of an outfit job. `person` and `garment` are the names that ComfyUI has given the pictures.

        The seed is derived from the job's id.
        """
        values: dict[str, object] = {
            "person_image": person,
            "garment_image": garment,
            "seed": UUID(job.job_id).int % (MAX_SEED + 1),
            "filename_prefix": file_prefix(job.job_id, attempt),
        }
        return filled(self.outfit, values)


def file_prefix(job_id: str, attempt: int) -> str:
    """Return the prefix of the file name of an attempt's picture on ComfyUI."""
    return f"retake/{job_id}_{attempt}"


def load_graphs() -> Graphs:
    """Read both graphs. Raises SettingsError with every fault, one per line."""
    faults: list[str] = []
    graphs = [_load(job_type, faults) for job_type in (JobType.TEXT, JobType.OUTFIT)]
    if faults:
        raise SettingsError("\n".join(faults))
    return Graphs(*graphs)


def filled(graph: Graph, values: Mapping[str, object]) -> Graph:
    """Return a copy of the graph with the placeholders in its nodes' inputs replaced."""
    return {
        node_id: {**node, "inputs": _filled(node["inputs"], values)} if "inputs" in node else node
        for node_id, node in graph.items()
    }


def _filled(part: Any, values: Mapping[str, object]) -> Any:
    if isinstance(part, dict):
        return {name: _filled(value, values) for name, value in part.items()}
    if isinstance(part, list):
        return [_filled(value, values) for value in part]
    if not isinstance(part, str):
        return part
    alone = _PLACEHOLDER.fullmatch(part)
    return values[alone[1]] if alone else _PLACEHOLDER.sub(lambda found: str(values[found[1]]), part)


def _load(job_type: JobType, faults: list[str]) -> Graph:
    name = FILES[job_type]
    path = name if os.path.exists(name) else default_file(name)
    try:
        graph = parse(read_file(path))
    except OSError as error:
        faults.append(f"{path}: cannot be read ({error.strerror})")
        return {}
    except ValueError as error:
        faults.append(f"{path}: {what_is_wrong(error)}")
        return {}
    fault = _fault(graph, PLACEHOLDERS[job_type])
    if fault:
        faults.append(f"{path}: {fault}")
    return graph if isinstance(graph, dict) else {}


def _fault(graph: object, wanted: frozenset[str]) -> str | None:
    if not isinstance(graph, dict) or not graph:
        return 'no graph: an object with nodes by their ids. In ComfyUI, use "Export (API)"'
    for node_id, node in graph.items():
        if not isinstance(node, dict) or not isinstance(node.get("class_type"), str):
            return f'node {json.dumps(node_id)[:80]} has no class_type. In ComfyUI, use "Export (API)"'
    found = {name for node in graph.values() for name in _names(node.get("inputs"))}
    missing, unknown = sorted(wanted - found), sorted(found - wanted)
    if missing:
        return f"no input of any node has {' or '.join(f'{{{{{name}}}}}' for name in missing)}"
    if unknown:
        known = ", ".join(sorted(wanted))
        return f"{{{{{unknown[0]}}}}} is nothing that a job has; possible are {known}"
    return None


def _names(part: object) -> Iterator[str]:
    """Yield the placeholders in the inputs of a node."""
    if isinstance(part, str):
        yield from _PLACEHOLDER.findall(part)
    elif isinstance(part, dict):
        for value in part.values():
            yield from _names(value)
    elif isinstance(part, list):
        for value in part:
            yield from _names(value)
