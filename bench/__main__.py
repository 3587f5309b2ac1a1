"""python -m bench: every benchmark, one table each."""

import sys
import tempfile
from pathlib import Path

from bench.channels import channels_table
from bench.operations import operations_table
from bench.processes import processes_table


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="retake-bench-") as folder:
        for number, table in enumerate((processes_table, operations_table, channels_table)):
            where = Path(folder, str(number))
            where.mkdir()
            print(table(where), end="\n\n", flush=True)


if __name__ == "__main__":
    sys.exit(main())
