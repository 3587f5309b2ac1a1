"""A Huey pipeline of six tasks, in SQLite with fsync; the results are kept there."""

import sys

from huey import SqliteHuey

what, folder = sys.argv[1:]
huey = SqliteHuey(filename=f"{folder}/huey.db", fsync=True)


@huey.task()
def step(number):
    return number + 1


results = []
if what == "steps":
    pipeline = step.s(0)
    for _ in range(5):
        pipeline = pipeline.then(step)
    results = huey.enqueue(pipeline)
huey.read_schedule()
while (task := huey.dequeue()) is not None:
    huey.execute(task)
assert [result.get() for result in results] == ([1, 2, 3, 4, 5, 6] if what == "steps" else [])
