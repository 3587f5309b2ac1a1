"""Faults to order from the stand-in for ComfyUI, in the grammar of retake.sandbox.orders: KIND[#CALLS]=FAULT.

comfy.prompt#2=cut-after         the second prompt is queued and executed, but the answer is lost
comfy.prompt#1=execution-error   the first prompt fails half-way
comfy.prompt=ws-cut              every WebSocket is cut while a prompt is executed
comfy.history#3=restart          queue and history are forgotten just before the third request for the history
comfy.view#1=500                 the first download of a picture fails
comfy.stats=hang                 the server does not answer health checks
"""

from retake.sandbox.orders import Order, OrderGrammar

KINDS = (
    *("comfy.prompt", "comfy.history", "comfy.queue", "comfy.jobs", "comfy.view", "comfy.upload"),
    *("comfy.interrupt", "comfy.stats", "comfy.ws", "comfy.other"),
)

PROMPT_FAULTS = {
    "execution-error": "the prompt is accepted, and its execution fails half-way",
    "interrupted": "the prompt is accepted, and interrupted half-way",
    "never-ends": "the prompt is accepted and executed until it is interrupted",
    "lost-output": "the prompt succeeds, but the file that it names is not there",
}
"""What happens to a prompt; only for comfy.prompt."""

SERVER_FAULTS = {
    "ws-cut": "all WebSockets are cut: half-way in comfy.prompt, else now",
    "restart": "queue, history and WebSockets are lost, at the same moments",
}

SHARED = ("cut-before", "cut-after", "hang", "hang-after", "not-json", "no-id")
"""Faults with the same meaning as in retake.sandbox.orders, besides HTTP statuses and slow=SECONDS."""


_GRAMMAR = OrderGrammar("ComfyUI", KINDS, (*PROMPT_FAULTS, *SERVER_FAULTS), SHARED)


def parse_order(text: str) -> Order:
    """Parse KIND[#CALLS]=FAULT. Raises ValueError, which says what is wrong and what is possible."""
    order = _GRAMMAR.parse(text)
    if order.fault.name in ("no-id", *PROMPT_FAULTS) and order.kind != "comfy.prompt":
        raise ValueError(f"{order.fault} is only possible for comfy.prompt")
    return order
