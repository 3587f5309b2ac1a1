"""Pictures and videos, made and checked on this machine: bytes in, bytes out.

picture.py checks, resizes and cuts pictures; placeholder.py typesets a topic on one (with typeset.py,
right_to_left.py); video.py makes a video from a picture and checks videos; audio.py reads the facts of a track,
waveform.py makes a video of it, thumbnail.py its thumbnail; structure.py checks PNG and MP4 files without decoding
them; ffmpeg.py runs ffmpeg. Nothing here knows about settings, buckets or vendors.
"""

from retake.errors import RetakeError


class MediaError(RetakeError):
    """A picture or video is invalid or could not be made. The message says why and what to do."""

    exit_code = 75
