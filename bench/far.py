"""How long a tick takes where each request to its bucket takes 100 ms: by how few of them follow one another."""

import statistics
import time
from pathlib import Path

from bench.buckets import filled, keys, laid_out, tick_asked
from bench.pipelines import environment
from bench.servers import Store, server
from bench.table import markdown
from retake.sandbox import Pace, Sandbox

DELAY_S = 0.1
RUNS = 5


def far_table(folder: Path) -> str:
    title = (
        f"Whole ticks where each request to the bucket takes {DELAY_S * 1000:.0f} ms, as cron starts them; the busy "
        f"one polls a task, which is answered at once. Medians of {RUNS}. Beside them what the requests would take "
        "one after the other, and what the same tick takes where they take no time."
    )
    rows = []
    with Sandbox(pace=Pace(0, 0, 0), quick=True) as vendors:
        places = laid_out(folder, vendors)
        for kind, name in (("b2", "B2 stand-in"), ("s3", "S3 stand-in")):
            with server(kind) as near, server(kind, DELAY_S) as far:
                for which, laid in (("resting", places["idle"]), *places.items()):
                    rest = which == "resting"
                    requests, took = ticks(far, laid, vendors, rest=rest)
                    _, alone = ticks(near, laid, vendors, rest=rest)
                    serial = f"{requests * DELAY_S:.1f}"
                    rows.append((f"{which}, {name}", str(requests), f"{took:.2f}", serial, f"{alone:.2f}"))
    return markdown(title, ("far bucket", "requests", "tick s", "one by one s", "near s"), rows)


def ticks(store: Store, laid: Path, vendors: Sandbox, *, rest: bool = False) -> tuple[int, float]:
    """The requests of a tick, and its seconds. The first two do not count: they note what later ones find. With `rest`
    they may rest; else each has an environment of its own, and looks at everything."""
    url = store.url(f"far-{laid.name}{'-rest' * rest}")
    with keys(store):
        filled(url, laid)
    cache = {"XDG_CACHE_HOME": f"{laid}.cache"}  # where the authorisation is kept
    environ = {**environment(laid, vendors), **store.environ, **cache, "RETAKE_STORAGE_URL": url}
    took, requests = [], 0
    for number in range(RUNS + 2):
        began = time.perf_counter()
        requests = len(tick_asked(store, {**environ, "BENCH_TICK": "" if rest else str(number)}))
        took.append(time.perf_counter() - began)
    return requests, statistics.median(took[2:])
