"""Test tools for pipelines, yours or Retake's own: a whole pipeline in this process, with failures on demand.

    from retake.testing import World

    world = World()
    world.vendors.plan("upscale", "refused", "refused")  # the first two upscales are refused, everything else succeeds
    world.tick()
    assert world.status == "upscale_trigger_failed"

World            the story pipeline on an in-memory bucket, its scripts in process, its clock under your control
FakeVendors      every vendor, with planned outcomes, counting what is billed
FakeMedia        media tools that return a few bytes
FailingBucket    any bucket, with storage errors or the death of the process at the k-th operation
CapturedLogs     what is logged inside a `with` block
Sandbox          stand-ins for the vendors over real HTTP: `retake.sandbox`

Nothing else in the package imports this.
"""

from retake.bucket.failing import Crash, FailingBucket, Fault
from retake.testing.logs import CapturedLogs
from retake.testing.vendors import Died, FakeMedia, FakeVendors
from retake.testing.world import World

__all__ = ["CapturedLogs", "Crash", "Died", "FailingBucket", "FakeMedia", "FakeVendors", "Fault", "World"]
