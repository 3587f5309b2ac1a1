"""The ledger at the root of a bucket in which each pipeline has a part of its own."""

from collections.abc import Callable

from retake.bucket import Bucket
from retake.clock import Clock
from retake.errors import StateError
from retake.operations.own_pipeline import OwnPipeline
from retake.operations.pipelines import ROOT
from retake.operations.port import PipelineState
from retake.paid.caps import Today


class RootLedger(OwnPipeline):
    """Stands beside the pipelines wherever ledgers are listed, as what writes to the ledger at the root of the bucket:
    robots and workers do. It has no documents and no items."""

    def __init__(self, whole: Bucket, clock: Clock) -> None:
        super().__init__(ROOT, whole, clock)
        self.prefix, self.bucket, self.lease_name = "", whole, None

    def describe(self, today: Today | StateError | None, vendor_off: Callable[[str], str]) -> PipelineState:
        return PipelineState("only a ledger")
