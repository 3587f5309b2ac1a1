"""Graphs in ComfyUI's API format: what the stand-in checks in a graph, and the picture it makes from one.

The picture shows the positive prompt above the images that the graph loads. As in ComfyUI, the PNG contains the whole
graph in its text chunk "prompt".
"""

import json
from collections.abc import Container, Iterator, Mapping
from io import BytesIO
from typing import Any

from PIL import Image, ImageDraw
from PIL.PngImagePlugin import PngInfo

from retake.media import typeset
from retake.sandbox import landscape

_OUTPUT_CLASSES = ("Save", "Preview")
_MIN_SIDE, _MAX_SIDE, _DEFAULT_SIDE = 16, 4096, 512  # pixels
_MAX_LINKS = 20  # nodes between a sampler and its text


def problem(graph: object, inputs: Container[str]) -> dict[str, Any] | None:
    """Return ComfyUI's answer (400) to a graph that it refuses, else None. `inputs` are the files that can be
    loaded."""
    if not isinstance(graph, dict) or not graph:
        return refusal("invalid_prompt", "The prompt has no nodes.")
    for node_id, node in graph.items():
        if not isinstance(node, dict) or not isinstance(node.get("class_type"), str):
            details = f"Node ID '#{node_id}'"
            return refusal(
                "invalid_prompt", "Cannot execute because a node is missing the class_type property.", details
            )
    if not output_nodes(graph):
        return refusal("prompt_no_outputs", "Prompt has no outputs")
    errors = {node_id: found for node_id in graph if (found := list(_node_errors(graph, node_id, inputs)))}
    if not errors:
        return None
    answer = refusal("prompt_outputs_failed_validation", "Prompt outputs failed validation")
    answer["node_errors"] = {
        node_id: {"errors": found, "dependent_outputs": output_nodes(graph), "class_type": graph[node_id]["class_type"]}
        for node_id, found in errors.items()
    }
    return answer


def refusal(kind: str, message: str, details: str = "") -> dict[str, Any]:
    """Return the body of a 400."""
    return {"error": _error(kind, message, details), "node_errors": {}}


def output_nodes(graph: Mapping[str, Any]) -> list[str]:
    """Return the ids of the nodes that save or preview something."""
    return [node_id for node_id, node in graph.items() if node["class_type"].startswith(_OUTPUT_CLASSES)]


def paint(graph: Mapping[str, Any], uploads: Mapping[str, bytes]) -> bytes:
    """Return the PNG that the graph produces."""
    width, height = size = _number(graph, "width"), _number(graph, "height")
    seed = next(_values(graph, ("seed", "noise_seed"), int), 0)
    image = landscape.plain(seed % 2**32, 1, size).convert("RGB")
    loaded = [uploads[name] for name in _values(graph, ("image",), str) if name in uploads]
    for n, data in enumerate(loaded):
        with Image.open(BytesIO(data)) as opened:
            small = opened.convert("RGB")
        small.thumbnail((max(1, width // len(loaded)), max(1, height // 2)))
        image.paste(small, (n * width // len(loaded), height - small.height))
    text = positive(graph)
    if text.strip():
        room = height / 2 if loaded else height
        setting = typeset.typeset(text, width * 0.9, room * 0.9)
        letters = Image.new("L", size)
        typeset.draw(ImageDraw.Draw(letters), setting, (width / 2, room / 2), 255)
        image.paste("white", mask=letters)
    return _png(image, graph)


def positive(graph: Mapping[str, Any]) -> str:
    """Return the text that the sampler's "positive" leads to, else the first text."""
    for link in _values(graph, ("positive",), list):
        for _ in range(_MAX_LINKS):
            node = graph.get(str(link[0])) if isinstance(link, list) and link else None
            link = _inputs(node).get("text", _inputs(node).get("conditioning"))
            if isinstance(link, str):
                return link
    return next(_values(graph, ("text", "prompt"), str), "")


def _node_errors(graph: Mapping[str, Any], node_id: str, inputs: Container[str]) -> Iterator[dict[str, Any]]:
    node = graph[node_id]
    for name, value in _inputs(node).items():
        if isinstance(value, list) and len(value) == 2 and str(value[0]) not in graph:
            yield _error("bad_linked_input", "Bad linked input, no such node", f"{name}, {value[0]}")
    image = _inputs(node).get("image")
    if node["class_type"] == "LoadImage" and isinstance(image, str) and image not in inputs:
        details = f"image - Invalid image file: {image}"
        yield _error("custom_validation_failed", "Custom validation failed for node", details)


def _error(kind: str, message: str, details: str) -> dict[str, Any]:
    return {"type": kind, "message": message, "details": details, "extra_info": {}}


def _inputs(node: Any) -> dict[str, Any]:
    found = node.get("inputs") if isinstance(node, dict) else None
    return found if isinstance(found, dict) else {}


def _values(graph: Mapping[str, Any], names: tuple[str, ...], kind: type) -> Iterator[Any]:
    """Yield the inputs with one of these names and that type, node by node."""
    for node in graph.values():
        yield from (value for name, value in _inputs(node).items() if name in names and type(value) is kind)


def _number(graph: Mapping[str, Any], name: str) -> int:
    return min(_MAX_SIDE, max(_MIN_SIDE, next(_values(graph, (name,), int), _DEFAULT_SIDE)))


def _png(image: Image.Image, graph: Mapping[str, Any]) -> bytes:
    facts, out = PngInfo(), BytesIO()
    facts.add_text("prompt", json.dumps(graph))
    image.save(out, "PNG", pnginfo=facts, compress_level=1)
    return out.getvalue()
