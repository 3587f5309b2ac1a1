"""Six procrastinate jobs in PostgreSQL, each of which defers the next; the worker ends when none is left."""

import os
import sys

import procrastinate

what, folder = sys.argv[1:]
app = procrastinate.App(connector=procrastinate.PsycopgConnector(conninfo=os.environ["DATABASE_URL"]))
done = []


@app.task(name="step")
async def step(number):
    done.append(number)
    if number < 6:
        await step.defer_async(number=number + 1)


async def main():
    async with app.open_async():
        if what == "schema":
            await app.schema_manager.apply_schema_async()
            return
        if what == "steps":
            await step.defer_async(number=1)
        await app.run_worker_async(wait=False, install_signal_handlers=False, listen_notify=False)


if __name__ == "__main__":
    import asyncio

    asyncio.run(main())
    assert done == ([1, 2, 3, 4, 5, 6] if what == "steps" else [])
