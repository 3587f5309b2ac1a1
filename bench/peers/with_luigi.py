"""Six Luigi tasks, each of which needs the file of the one before; an idle tick finds the last file present."""

import os
import sys
from pathlib import Path

import luigi

what, folder = sys.argv[1:]


class Step(luigi.Task):
    name = luigi.Parameter()
    number = luigi.IntParameter()

    def requires(self):
        return [Step(self.name, self.number - 1)] if self.number > 1 else []

    def output(self):
        return luigi.LocalTarget(f"{folder}/{self.name}-{self.number}.txt")

    def run(self):
        with self.output().open("w") as file:
            file.write(str(self.number))


name = os.urandom(8).hex() if what == "steps" else "idle"
if what == "idle":
    Path(folder, "idle-6.txt").write_text("6")
assert luigi.build([Step(name, 6)], local_scheduler=True, log_level="WARNING")
assert Path(folder, f"{name}-6.txt").read_text() == "6"
