"""Real pictures and videos, made and checked on this machine: bytes in, bytes out.

picture.py looks at, sizes and cuts pictures; placeholder.py sets a topic on one (with typeset.py); video.py makes a
video of a picture and checks videos; ffmpeg.py runs ffmpeg. Nothing in here knows of settings, buckets or vendors.
"""

from retake.errors import RetakeError


class MediaError(RetakeError):
    """A picture or a video could not be made, or is not what it should be. The message says why and what to do."""

    exit_code = 75
