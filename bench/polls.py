"""python -m bench.polls SANDBOX_URL CONCURRENCY TASK…: poll each task once with the bare client."""

import sys
from concurrent.futures import ThreadPoolExecutor

from retake.story.settings import Settings, sandboxed
from retake.vendors.piapi import PiAPI


def main() -> None:
    url, concurrency, *tasks = sys.argv[1:]
    sold = sandboxed(Settings(), url).midjourney

    def ask(task: str) -> None:
        client = PiAPI(sold.endpoint, sold.task_endpoint, "bench", process_mode="fast", aspect_ratio="", timeout_s=30)
        if not client.fetch(task).running:
            raise RuntimeError(f"task {task} is not running")

    with ThreadPoolExecutor(int(concurrency)) as pool:
        list(pool.map(ask, tasks))


if __name__ == "__main__":
    main()
