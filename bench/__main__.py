"""python -m bench [NAME ...]: every benchmark, or those with these names; one table each."""

import sys
import tempfile
from pathlib import Path

from bench.buckets import buckets_table
from bench.channels import channels_table
from bench.far import far_table
from bench.generations import generations_table
from bench.growth import growth_table
from bench.images import images_table
from bench.ledger import ledger_table
from bench.music import music_table
from bench.operations import operations_table
from bench.peer_costs import peers_table
from bench.processes import processes_table
from bench.status import status_table
from bench.waveform import waveform_table

TABLES = {
    "processes": processes_table,
    "peers": peers_table,
    "operations": operations_table,
    "generations": generations_table,
    "growth": growth_table,
    "buckets": buckets_table,
    "far": far_table,
    "channels": channels_table,
    "ledger": ledger_table,
    "status": status_table,
    "waveform": waveform_table,
    "music": music_table,
    "images": images_table,
}


def main() -> None:
    names = sys.argv[1:] or [*TABLES]
    if unknown := [name for name in names if name not in TABLES]:
        sys.exit(f"There is no benchmark {', '.join(unknown)}. Use: {', '.join(TABLES)}.")
    with tempfile.TemporaryDirectory(prefix="retake-bench-") as folder:
        for name in names:
            where = Path(folder, name)
            where.mkdir()
            print(TABLES[name](where), end="\n\n", flush=True)


if __name__ == "__main__":
    sys.exit(main())
