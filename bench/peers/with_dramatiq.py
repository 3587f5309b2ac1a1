"""A Dramatiq pipeline of six messages, on Redis with appendfsync always; the worker ends when none is left."""

import os
import sys

import dramatiq
from dramatiq.brokers.redis import RedisBroker
from dramatiq.results import Results
from dramatiq.results.backends import RedisBackend

what, folder = sys.argv[1:]
url = os.environ["REDIS_URL"]
broker = RedisBroker(url=url)
broker.add_middleware(Results(backend=RedisBackend(url=url)))
dramatiq.set_broker(broker)


@dramatiq.actor(store_results=True)
def step(number):
    return number + 1


pipe = None
if what == "steps":
    pipe = dramatiq.pipeline([step.message(0), *(step.message() for _ in range(5))]).run()
worker = dramatiq.Worker(broker, worker_threads=1, worker_timeout=10)
worker.start()
if pipe:
    assert pipe.get_result(block=True, timeout=60_000) == 6
broker.join("default")
worker.stop()
