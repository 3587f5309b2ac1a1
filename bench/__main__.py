"""python -m bench: every benchmark, one table each."""

import sys
import tempfile
from pathlib import Path

from bench.buckets import buckets_table
from bench.channels import channels_table
from bench.generations import generations_table
from bench.ledger import ledger_table
from bench.music import music_table
from bench.operations import operations_table
from bench.processes import processes_table
from bench.status import status_table
from bench.waveform import waveform_table

TABLES = (
    processes_table,
    operations_table,
    generations_table,
    buckets_table,
    channels_table,
    ledger_table,
    status_table,
    waveform_table,
    music_table,
)


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="retake-bench-") as folder:
        for number, table in enumerate(TABLES):
            where = Path(folder, str(number))
            where.mkdir()
            print(table(where), end="\n\n", flush=True)


if __name__ == "__main__":
    sys.exit(main())
