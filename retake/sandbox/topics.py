"""What the chat stand-in knows: topics with everything that a post needs. Facts are true; the remarks are its own."""

from typing import NamedTuple


class Topic(NamedTuple):
    """One topic in one language. `key` ties the languages together and names its PICTURES."""

    key: str
    topic: str
    short: str
    text: str
    comment: str
    question: str
    options: tuple[str, ...]
    frame: str  # what the first frame shows
    action: str  # what happens in it


class Picture(NamedTuple):
    """How a topic looks and moves: prompts for the picture and for the video, in English as those vendors want them."""

    midjourney: str
    runway: str


PICTURES = {
    "flannan": Picture(
        "A lone lighthouse on a black rock in the sea at dusk, one lit window, restless water, low clouds, a silent "
        "and abandoned mood, cinematic wide shot",
        "Slow push-in on the lighthouse, waves rolling past the rock, the lamp glowing steadily, gulls drifting by",
    ),
    "milky": Picture(
        "A sailing boat on a glowing milky sea at night, the water brighter than the starry sky, calm ocean, "
        "moonlight, dreamlike cinematic wide shot",
        "Camera drifts slowly towards the boat, the glowing water breathes gently, stars shimmer",
    ),
    "tenere": Picture(
        "A lone tree in an endless desert of dunes at golden hour, long light, no road, no people, cinematic wide shot",
        "Very slow push-in on the tree, sand streaming over the dune crests, warm haze trembling",
    ),
    "balloon": Picture(
        "Colourful hot air balloons over a wide green valley on a summer day, distant mountains, soft clouds, birds",
        "The balloons rise slowly, the camera tilts up with them, birds cross the frame",
    ),
    "windmills": Picture(
        "An old windmill at sunset on flat land, its sails at a slant, warm light, birds in the sky, painterly wide "
        "shot",
        "The sails turn slowly and come to rest, the camera pushes in, birds pass",
    ),
    "baikal": Picture(
        "A vast mountain lake in winter at dawn, snow on the peaks, mirror-like water, pine trees on the shore, cold "
        "mist",
        "Slow glide over the lake towards the mountains, thin mist moving, light growing",
    ),
    "krakatoa": Picture(
        "A blood-red sunset over the ocean, sky in flames from horizon to zenith, a small ship in silhouette, wide "
        "shot",
        "The red light deepens, the ship moves slowly across the path of the sun, gentle swell",
    ),
    "summer": Picture(
        "A dark lake under a storm, rain, a cabin with lit windows on the shore, mountains in cloud, gothic mood",
        "Rain sweeps over the lake, the windows flicker, the camera creeps towards the cabin",
    ),
    "tern": Picture(
        "A flock of white birds over a cold northern sea at dawn, low sun, distant icy coast, pastel light, wide shot",
        "The birds fly steadily along the horizon, the camera follows them, waves glitter",
    ),
    "geese": Picture(
        "A skein of geese crossing snowy Himalayan peaks at sunrise, thin air, layered mountain ridges, epic wide shot",
        "The geese pass slowly in front of the peaks, snow blowing from the ridges, light rising",
    ),
    "pando": Picture(
        "An autumn forest on rolling hills in golden light, thousands of trees like one, haze between the ridges, wide "
        "shot",
        "Camera floats over the treetops, leaves tremble in waves, light moves across the hills",
    ),
    "fireflies": Picture(
        "Fireflies in a dark forest clearing on a summer night, pine silhouettes, hundreds of warm sparks, moonlit "
        "haze",
        "The sparks light up together, fade together, light up again; the camera drifts forward",
    ),
    "carrington": Picture(
        "Aurora over a mountain valley at night, green and violet curtains, a cabin with a lit window, stars, wide "
        "shot",
        "The aurora sways in slow curtains, the stars turn slightly, the camera pushes in on the cabin",
    ),
    "blackout": Picture(
        "A big city skyline at night under a blazing milky way, few lit windows, deep blue sky, wide shot",
        "Window after window goes dark and the stars grow brighter, the camera tilts slowly up",
    ),
    "noons": Picture(
        "A nineteenth-century city skyline on a bright day, clear blue sky, church towers, birds over the roofs, wide "
        "shot",
        "Shadows creep over the roofs and halt, birds circle, the camera pushes in on a tower",
    ),
    "dunes": Picture(
        "Great sand dunes in the desert at sunset, sharp crests, a small figure on the ridge, warm glow, wide shot",
        "Sand slides down the slope in a slow sheet, the figure stands still, the camera drifts sideways",
    ),
    "catatumbo": Picture(
        "A storm over a tropical lake at night, towering clouds lit from inside, a small boat, reflections, wide shot",
        "Clouds flash silently from inside again and again, the boat rocks, the camera holds",
    ),
    "nemo": Picture(
        "A tiny sailing boat alone on an endless ocean under a sky full of stars, moon path on the water, wide shot",
        "The boat moves slowly along the path of the moon, one bright star crosses the sky above it",
    ),
    "flash": Picture(
        "The sun touching the sea horizon at sunset, calm ocean, a thin green rim of light above it, clear sky, wide "
        "shot",
        "The sun sinks into the sea, its last edge turns green for a moment, the water darkens",
    ),
    "fog": Picture(
        "Fog pouring over bare hills at dawn, soft layers of mist between ridges, a lone figure, quiet, wide shot",
        "Fog flows slowly over the ridges like water, the figure waits, light grows",
    ),
    "snowflake": Picture(
        "A small wooden cabin in a snowy pine forest on a winter evening, lit windows, falling snow, hills, wide shot",
        "Snow falls slowly in large flakes, the windows glow, the camera pushes in on the cabin",
    ),
    "moon": Picture(
        "A full moon over a still mountain lake at night, its reflection on the water, dark pine shore, wide shot",
        "The camera retreats almost unnoticeably while the moon's reflection trembles on the water",
    ),
    "harbour": Picture(
        "A quiet harbour on a rocky coast at dusk, a fishing boat returning, lighthouse lamp, purple sky, calm sea",
        "The boat comes home slowly, the lamp turns, gulls settle, the camera drifts with the boat",
    ),
    "tree": Picture(
        "A lone old tree on a hill at sunrise, mist in the valley, distant mountains, birds, soft gold light, wide "
        "shot",
        "Mist drains from the valley, birds leave the tree, the camera pushes in slowly",
    ),
}


# For a topic that somebody else thought of; {topic} stands for it.
GENERAL = {
    "en": Topic(
        "",
        "",
        "",
        "{topic}. Most people pass it by, and that is the interesting part: what is always there is what nobody looks "
        "at. Stop for a minute and it begins to talk. Who was here first, who paid for it, who was sure that it could "
        "not last? The answers are seldom the ones in the brochure. Things hold because somebody keeps them up, "
        "quietly, on days when nobody writes about it. Look once more before you go on. It will not get louder, but "
        "you will hear it.",
        "We discovered it again today. It has been waiting for us since yesterday, with some pity.",
        "How long could you look at it?",
        ("A minute", "An hour", "Until the phone rings", "I have already scrolled on"),
        "{topic}: one wide view at first light, nobody in it yet.",
        "The light moves in, and one thing after another gets its shadow.",
    ),
    "ru": Topic(
        "",
        "",
        "",
        "{topic}. Мимо этого проходят каждый день, и в этом самое интересное: то, что есть всегда, никто не "
        "рассматривает. Остановитесь на минуту, и оно заговорит. Кто был здесь первым, кто за это заплатил, кто был "
        "уверен, что долго так не простоит? Ответы редко совпадают с буклетом. Всё держится потому, что кто-то молча "
        "это поддерживает — в те дни, когда об этом не пишут. Посмотрите ещё раз, прежде чем идти дальше. Громче не "
        "станет, но вы услышите.",
        "Сегодня мы открыли это заново. Оно ждало нас со вчерашнего дня — и немного жалело.",
        "Сколько вы могли бы на это смотреть?",
        ("Минуту", "Час", "Пока не зазвонит телефон", "Уже пролистал"),
        "{topic}: широкий вид на рассвете, в кадре ещё никого.",
        "Свет приходит, и у вещей по одной появляются тени.",
    ),
}
