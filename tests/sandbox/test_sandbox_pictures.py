"""The pictures and videos of the stand-ins."""

from itertools import pairwise

import pytest
from PIL import Image, ImageChops, ImageStat

from retake.sandbox import landscape, pictures, video
from retake.sandbox.landscape import Scene
from retake.sandbox.pictures import PictureSpec

SMALL = (160, 90)


def _difference(one: Image.Image, other: Image.Image) -> float:
    """Return the mean difference of two pictures, 0 … 255."""
    return sum(ImageStat.Stat(ImageChops.difference(one, other)).mean) / 3


@pytest.mark.parametrize(
    "prompt",
    [
        "lighthouse, boat, birds, storm",
        "city at dusk",
        "desert, figure, golden hour",
        "snowy forest cabin at night, aurora",
        "lone tree and windmill, hot air balloons, summer day",
        "lake, fireflies, rain",
        "",
    ],
)
def test_any_prompt_makes_a_picture(prompt: str) -> None:
    image = landscape.paint(prompt, "1", SMALL)
    assert (image.size, image.mode) == (SMALL, "RGB")
    assert max(ImageStat.Stat(image).stddev) > 8


@pytest.mark.parametrize("size", [(90, 160), (64, 64), (200, 50)])
def test_a_picture_has_the_size_asked_for(size: tuple[int, int]) -> None:
    assert landscape.paint("lighthouse, boat, balloon, aurora, rain", "1", size).size == size


def test_the_same_seed_paints_the_same_and_another_something_else() -> None:
    one = landscape.paint("mountains", "1", SMALL)
    assert landscape.paint("mountains", "1", SMALL).tobytes() == one.tobytes()
    assert _difference(landscape.paint("mountains", "2", SMALL), one) > 4


@pytest.mark.parametrize("prompt", ["mountains at sunset", "lighthouse at dusk, boat", "night lake, aurora"])
def test_twice_as_large_it_is_the_same_picture(prompt: str) -> None:
    small = landscape.paint(prompt, "3/1", (320, 180))
    large = landscape.paint(prompt, "3/1", (640, 360)).resize((320, 180), Image.Resampling.BOX)
    assert _difference(small, large) < 5
    assert _difference(small, landscape.paint(prompt, "3/2", (320, 180))) > 5


@pytest.mark.parametrize(
    ("prompt", "hour", "place"),
    [
        ("night train in the mountains", "night", "mountains"),
        ("закат над морем", "sunset", "sea"),
        ("foggy city street", "grey", "city"),
        ("a windmill, its sails at rest, thousands of flowers, summer day in a valley", "day", "mountains"),
        ("дюны в пустыне, утро", "dawn", "desert"),
    ],
)
def test_words_decide_the_hour_and_the_place(prompt: str, hour: str, place: str) -> None:
    scene = Scene.of(prompt, "1")
    assert (scene.hour, scene.place) == (hour, place)


@pytest.mark.parametrize(
    ("ratio", "flag", "size"),
    [("16:9", "", (1024, 576)), ("9:16", "", (576, 1024)), (None, " --ar 3:2", (1024, 682)), (None, "", (1024, 1024))],
)
def test_a_single_has_the_shape_asked_for(ratio, flag: str, size: tuple[int, int]) -> None:
    from retake.sandbox import VendorTask

    request = {"input": {"prompt": f"x{flag}"} | ({"aspect_ratio": ratio} if ratio else {})}
    task = VendorTask("id", "imagine", 0.0, 0.0, "", request, 45, 1)
    assert PictureSpec.of(task, quick=False).size == size


def test_a_video_moves_softly_and_keeps_to_its_picture(tmp_path) -> None:
    import subprocess

    import imageio_ffmpeg

    picture = pictures.single(PictureSpec("mountains at sunset", 1, (320, 180), quick=False), 1)
    made = tmp_path / "video.mp4"
    made.write_bytes(video.make_video(picture, "320:180", 1, seed=1))
    raw = subprocess.run(
        [
            imageio_ffmpeg.get_ffmpeg_exe(),
            "-loglevel",
            "error",
            "-i",
            str(made),
            "-f",
            "rawvideo",
            "-pix_fmt",
            "rgb24",
            "-",
        ],
        capture_output=True,
        check=True,
    ).stdout
    length = 320 * 180 * 3
    frames = [Image.frombytes("RGB", (320, 180), raw[at : at + length]) for at in range(0, len(raw), length)]
    steps = [_difference(one, other) for one, other in pairwise(frames)]
    assert len(frames) == video.FPS
    assert _difference(frames[0], frames[-1]) > 2
    assert max(steps) < 4


def test_variants_of_a_prompt_that_leaves_all_open_share_hour_and_place() -> None:
    scenes = [Scene.of("x", f"5/{index}") for index in range(1, 9)]
    assert len({(scene.hour, scene.place) for scene in scenes}) == 1
