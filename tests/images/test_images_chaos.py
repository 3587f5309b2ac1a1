"""Everything is killed under load: each accepted job reaches its client with the right picture, is executed once, and
leaves nothing behind. RETAKE_SEEDS=20000 (make soak) runs it at length."""

import os
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random

from chaos import Ruin, Wish
from local_servers import RunningServer
from rabbit_server import RabbitServer

from retake.clock import SystemClock
from retake.images.examinations import check_images_of_operator

SEEDS = int(os.environ.get("RETAKE_SEEDS", "0"))
WISHES, DEATHS = (600, 400) if SEEDS >= 1000 else (24, 14)
CLIENTS = 6
PATHS = ("/jobsRedis", "/jobsRedis", "/jobs", "/jobChangeOutfit")


def test_nothing_is_lost_doubled_or_left_behind(
    tmp_path: Path, redis_server: RunningServer, new_rabbit: RabbitServer, database_url: str
) -> None:
    seed = int(os.environ.get("RETAKE_SEED", "") or time.time_ns() % 10**6)
    ruin = Ruin(tmp_path, redis_server, new_rabbit, database_url)
    with ruin.stack:
        ruin.start()
        with ThreadPoolExecutor(CLIENTS) as pool:
            wishes = [Wish(number, PATHS[number % len(PATHS)]) for number in range(WISHES)]
            asked = [pool.submit(ruin.fulfil, wish, Random(f"{seed} {wish.number}")) for wish in wishes]
            ruin.destroy(Random(seed), DEATHS)
            faults = [fault for it in asked if (fault := it.result())]
        story = f"RETAKE_SEED={seed} replays the order of deaths\n{ruin.told}\n{faults}"
        assert not faults, f"{story}\n{ruin.logs()[-6000:]}"
        end = time.monotonic() + 90
        while (left := ruin.left()) and time.monotonic() < end:
            time.sleep(0.5)
        assert not left, f"{story}\n{left}\n{ruin.logs()[-6000:]}"
        checked = check_images_of_operator(ruin.environ, SystemClock())
        assert checked.whole, f"{story}\n{checked.findings}"
        assert ruin.executions() == ruin.expected(), story
        assert "this is a bug in Retake" not in ruin.logs(), ruin.logs()[-6000:]
