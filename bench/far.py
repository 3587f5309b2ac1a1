"""How long a tick takes if each request to its bucket takes 100 ms; the fewer wait for one another, the faster."""

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
        f"Whole ticks, as cron starts them, if each request to the bucket takes {DELAY_S * 1000:.0f} ms; the busy one "
        f"polls a task, which is answered immediately. Medians of {RUNS}. The references are the requests one after "
        "the other, and the same tick if they take no time."
    )
    rows = []
    with Sandbox(pace=Pace(0, 0, 0), quick=True) as vendors:
        places = laid_out(folder, vendors)
        for kind, name in (("b2", "B2 stand-in"), ("s3", "S3 stand-in")):
            with server(kind) as near, server(kind, DELAY_S) as far:
                for which, place in (("resting", places["idle"]), *places.items()):
                    resting = which == "resting"
                    requests, took = measure_ticks(far, place, vendors, resting=resting)
                    _, alone = measure_ticks(near, place, vendors, resting=resting)
                    serial = f"{requests * DELAY_S:.1f}"
                    rows.append((f"{which}, {name}", str(requests), f"{took:.2f}", serial, f"{alone:.2f}"))
    return markdown(title, ("far bucket", "requests", "tick s", "one by one s", "near s"), rows)


def measure_ticks(store: Store, folder: Path, vendors: Sandbox, *, resting: bool = False) -> tuple[int, float]:
    """Return the requests of a tick and its seconds, without the first two, which note what later ones need.

    With `resting`, ticks may rest; otherwise each has its own environment, and so looks at everything.
    """
    url = store.url(f"far-{folder.name}{'-rest' * resting}")
    with keys(store):
        filled(url, folder)
    cache = {"XDG_CACHE_HOME": f"{folder}.cache"}  # for the authorisation
    environ = {**environment(folder, vendors), **store.environ, **cache, "RETAKE_STORAGE_URL": url}
    took, requests = [], 0
    for number in range(RUNS + 2):
        began = time.perf_counter()
        requests = len(tick_asked(store, {**environ, "BENCH_TICK": "" if resting else str(number)}))
        took.append(time.perf_counter() - began)
    return requests, statistics.median(took[2:])
