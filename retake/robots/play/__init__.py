"""One robot on a test clock, against a world that fails as ordered: `retake robots play`.

orders.py      the ordered failures, and the sequence in which they occur
timeline.py    what happened, with the time of each event: waits, breaker, actions, alerts
worlds.py      the work of each kind of robot: to fetch, set up, link, create, validate
performance.py the play: pieces of work, one after another, until every ordered failure has occurred

Nothing waits, and nothing outside the process is called. The robots, breakers, locks and alerts are the real ones.
"""

from retake.robots.play.orders import OrderedFailure, read_failures
from retake.robots.play.performance import play
from retake.robots.play.timeline import PlayedEvent

__all__ = ["OrderedFailure", "PlayedEvent", "play", "read_failures"]
