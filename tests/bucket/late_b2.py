"""B2 at a later time, for things that age there."""

import time
from uuid import uuid4

from retake.bucket.b2.bucket import B2Bucket, open_b2
from retake.sandbox.b2 import B2Sandbox


class LateB2:
    """A B2 whose clock can be set forward."""

    def __init__(self) -> None:
        self.late_s = 0.0
        self.sandbox = B2Sandbox(now=lambda: time.time() + self.late_s)
        self.url = self.sandbox.storage_url(uuid4().hex)

    def bucket(self) -> B2Bucket:
        return open_b2(self.url, environ=self.sandbox.environment())
