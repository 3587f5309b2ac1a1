"""A DBOS workflow of six steps, in SQLite; an idle tick launches DBOS, which looks for workflows to recover."""

import sys

from dbos import DBOS

what, folder = sys.argv[1:]
DBOS(
    config={
        "name": "bench",
        "system_database_url": f"sqlite:///{folder}/dbos.db",
        "run_admin_server": False,
        "log_level": "ERROR",
    }
)


@DBOS.step()
def step(number: int) -> int:
    return number + 1


@DBOS.workflow()
def six() -> int:
    number = 0
    for _ in range(6):
        number = step(number)
    return number


DBOS.launch()
if what == "steps":
    assert six() == 6
DBOS.destroy()
