"""Pictures and videos, made and checked on this machine: bytes in, bytes out.

picture.py checks, resizes and cuts pictures; placeholder.py typesets a topic on one (with typeset.py); video.py makes a
video of a picture and checks videos; audio.py has the facts of a track, waveform.py makes a video of one, thumbnail.py
its thumbnail; ffmpeg.py runs ffmpeg. Nothing here knows of settings, buckets or vendors.
"""

from retake.errors import RetakeError


class MediaError(RetakeError):
    """A picture or video could not be made or is invalid. The message says why and what to do."""

    exit_code = 75
