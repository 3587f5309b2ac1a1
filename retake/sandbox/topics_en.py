"""The topics in English."""

from retake.sandbox.topics import Topic

TOPICS = (
    Topic(
        "flannan",
        "Three keepers vanished from a Scottish lighthouse in 1900 and left the lamp clean, filled and ready",
        "The Flannan Isles keepers",
        "In December 1900 a relief boat reached the Flannan Isles and nobody came down to the landing. The gate was "
        "shut, the beds were empty, the clock had stopped. The lamp stood trimmed and filled, ready for a night that "
        "three men never saw. The log ended on the 15th. One set of oilskins still hung on its peg, so one of them had "
        "run out into the storm in his shirt. The inquiry decided that a great wave had taken them from the western "
        "landing. It is probably true. It has never been enough for anybody who has stood there and listened.",
        "Three men, one lamp, no overtime pay. And the report still praises how tidy the kitchen was.",
        "What really happened on the rock?",
        ("One enormous wave", "Two ran to save the third", "They resigned without notice", "I prefer not to know"),
        "A lighthouse on a dark rock at dusk, one window lit, the landing stage empty.",
        "The sea climbs the rock and falls back; the lamp burns on for nobody.",
    ),
    Topic(
        "milky",
        "Sometimes the sea glows white for days over an area that can be seen from orbit",
        "The milky sea",
        "Sailors told of it for three hundred years: on a moonless night the sea turns white to the horizon, as if the "
        "ship were sailing through snow. Nobody quite believed them. Then someone looked through satellite pictures of "
        "1995 for the place that a British steamer, the Lima, had written down off Somalia. There it was: a glowing "
        "patch larger than fifteen thousand square kilometres, for three nights in a row. The light is thought to come "
        "from bacteria, unimaginably many, all switched on at once. Nobody knows what tells them to begin.",
        "Three centuries of sailors: «we saw it». Science: «do you have a satellite?»",
        "Who would you have believed?",
        ("The captain", "The satellite", "The bacteria", "Nobody before coffee"),
        "A small sailing boat on water that is brighter than the night sky.",
        "The glow breathes under the hull, and the wake is a dark line through it.",
    ),
    Topic(
        "tenere",
        "The loneliest tree on Earth stood in the Sahara until a driver ran into it",
        "The Tree of Ténéré",
        "For decades an acacia stood in the Ténéré, and there was no other tree for hundreds of kilometres. Caravans "
        "steered by it; it is one of the few trees ever drawn on maps of that scale. When a well was dug beside it in "
        "the winter of 1938, its roots were found going down some thirty metres to the water. It had outlived the "
        "forest it came from, the rivers and the rain. In 1973 a lorry hit it. There was nothing else to hit in any "
        "direction. A metal pole stands there now, and the trunk is kept in a museum in Niamey.",
        "An entire desert to drive through, and he found the one thing in it. A natural talent.",
        "The driver's best excuse?",
        ("It came out of nowhere", "I was following the map", "The sun was in my eyes", "What tree?"),
        "One acacia in a sea of dunes, its shadow longer than anything else in sight.",
        "Sand streams past the trunk; the tree stands as it always has.",
    ),
    Topic(
        "balloon",
        "The first passengers to fly were a sheep, a duck and a rooster",
        "The first air passengers",
        "On 19 September 1783 the Montgolfier brothers let a balloon go at Versailles before the king, the court and a "
        "very large crowd. Nobody knew whether one could breathe up there, so the basket carried a sheep, a duck and a "
        "rooster. The duck was there for comparison: it was used to heights. They flew for eight minutes and came down "
        "in a wood some three kilometres off. The sheep was found grazing. The rooster had a hurt wing, and the "
        "learned men blamed thin air until someone recalled that the sheep had kicked it before the start. Two months "
        "later people dared to follow.",
        "A cabin crew of three, one casualty, and the official inquiry blamed the atmosphere. Aviation was born "
        "complete.",
        "Whom would you have sent first?",
        ("The sheep again", "The engineer", "The king", "My manager"),
        "Bright balloons above a green valley, tiny baskets under them.",
        "The ground lets go without a sound; the valley grows small.",
    ),
    Topic(
        "windmills",
        "Dutch windmills passed on news with the position of their resting sails",
        "The language of windmills",
        "Long before the telephone a whole province could read what had happened in a miller's family from kilometres "
        "away. A sail stopped just before its highest point meant joy: a birth, a wedding. Stopped just past it, the "
        "house was in mourning. Straight and crosswise: a short rest, work goes on. On a diagonal: a long pause, the "
        "miller is away. During the war sails are said to have warned of raids as well. It was a network with one bit "
        "per mill, powered by wind, and it never asked anybody to accept cookies.",
        "A social network with four statuses and no comments section. Humanity peaked early.",
        "Which status do you need most?",
        ("Joy", "Long pause", "Short rest", "Gone, do not wait"),
        "An old mill at sunset, its sails halted on the slant.",
        "The sails slow down, pass the top, and stop a hand's breadth after it.",
    ),
    Topic(
        "baikal",
        "One lake in Siberia holds about a fifth of the world's unfrozen fresh water",
        "The depth of Baikal",
        "Lake Baikal is more than sixteen hundred metres deep and about twenty-five million years old. It holds more "
        "water than the five Great Lakes of America together. In winter it freezes so hard that in 1904, when an army "
        "waited for supplies, rails were laid across the ice. The first locomotive broke through, so from then on the "
        "wagons were drawn over by horses and by men. Fishermen say the ice sings: it cracks for kilometres with a "
        "sound between a whip and a cello. Under all that lives a seal that nobody can explain.",
        "They put a train on a lake, the train sank, and the next line of the plan was: horses.",
        "Would you cross on the ice?",
        ("In February, yes", "Only behind the horse", "I will wait for July", "I am the seal"),
        "A lake without an end, white peaks behind it, thin mist over the water.",
        "The mist lifts; far out the ice answers with one long note.",
    ),
    Topic(
        "krakatoa",
        "After Krakatoa exploded, sunsets on the other side of the world were so red that fire engines went out",
        "The sunsets of 1883",
        "When Krakatoa blew up in August 1883 the bang was heard almost five thousand kilometres away. The dust took a "
        "little longer. In November it reached the north, and the evening sky over New York and Connecticut turned "
        "such a red that people called the fire brigade. In London a painter, William Ascroft, made hundreds of quick "
        "sketches of the evenings by the Thames, one every few minutes. Some think that the sky in Munch's «Scream» "
        "remembers those months. A mountain had disappeared, and the whole planet watched it go down, every evening, "
        "for three years.",
        "The fire brigade turned out for the sun. Good response time, wrong address.",
        "A sky like that over your house. You:",
        ("Call the fire brigade", "Paint it", "Post it with no filter", "Go back to sleep"),
        "A sky in flames from the horizon up, and one ship in front of it.",
        "The red grows deeper than it should, and the sea takes it over.",
    ),
    Topic(
        "summer",
        "A summer that never came gave us Frankenstein",
        "The missing summer",
        "In 1815 the volcano Tambora exploded, and in 1816 the summer stayed away from Europe. It snowed in June in "
        "New England, harvests rotted, bread was dear. On Lake Geneva a party of young English people could not leave "
        "the house for rain. Lord Byron proposed that everyone should write a ghost story. Mary Godwin, eighteen years "
        "old, could think of nothing for days. Then she saw a student kneeling beside the thing that he had put "
        "together. Another guest, Dr Polidori, began «The Vampyre». One volcano, one rainy holiday, and two monsters "
        "that have outlived everyone in the room.",
        "Cancelled holiday: she wrote a classic. We had two years indoors and learnt to bake bread.",
        "It rains all summer. What do you write?",
        ("A monster", "A complaint", "A reply to everyone", "Nothing, I am on Wi-Fi"),
        "A house by a dark lake, two lit windows, rain over everything.",
        "Rain walks across the water; behind the glass somebody gets up.",
    ),
    Topic(
        "tern",
        "A bird of a hundred grams sees two summers a year, and more daylight than any other animal",
        "Two summers a year",
        "The Arctic tern breeds in the far north while the sun does not set there. Then it flies to the other end of "
        "the planet and arrives for the southern summer, where the sun does not set either. Birds with tiny loggers on "
        "their legs covered seventy thousand kilometres and more in a year, and not by the shortest way: they follow "
        "the winds in a great S over the Atlantic. A tern may live for thirty years. Added up, that is three journeys "
        "to the moon and back, for a creature that weighs as much as a bar of chocolate.",
        "A hundred grams, two summers, no luggage. Some of us cannot get through an airport with a water bottle.",
        "Seventy thousand kilometres for good weather?",
        ("Every year", "Once, by train", "I have a lamp", "Winter is fine"),
        "White birds low over a cold bright sea, a pale coast far behind.",
        "They hold their line without haste, and the sun does not go down.",
    ),
    Topic(
        "geese",
        "Some geese fly across the Himalaya on air that would leave us unconscious",
        "Geese above the Himalaya",
        "Bar-headed geese cross the highest mountains on Earth twice a year. One was tracked at more than seven "
        "thousand metres, where a breath holds less than half the oxygen that it has by the sea. Their blood binds it "
        "better, their lungs are larger, and they do not wait for a tail wind: they set out at night and early in the "
        "morning, when cold air is dense and carries better. And they do not keep to one height. They follow the "
        "ground up and down like a roller coaster, because giving height away and winning it back costs less than "
        "staying up.",
        "Eight hours over the roof of the world on their own wings. My lift has been out of order since Monday.",
        "What keeps you going at that height?",
        ("The flock", "Stubbornness", "Snacks", "I would turn back"),
        "A line of geese in front of white summits, the first light on the snow.",
        "The line dips into the valley and rises again with the ridge.",
    ),
    Topic(
        "pando",
        "A forest in Utah is a single tree with some forty-seven thousand trunks",
        "One tree called Pando",
        "Near Fish Lake in Utah stand forty-seven thousand aspens with the same genes. They share one root system, so "
        "what looks like a wood is one being, called Pando, Latin for «I spread». It covers more than forty hectares "
        "and weighs around six million kilograms. Single trunks live for a century or so; the root has been at it for "
        "thousands of years. In October all of it turns yellow at the same hour. It is shrinking now, because deer eat "
        "the young shoots and nobody eats the deer. An organism can outlive ice ages and still lose to a snack.",
        "Forty-seven thousand colleagues, one opinion. Even the meetings must be quiet.",
        "What would you do with that many trunks?",
        ("Stand still", "Divide the work", "Argue with myself", "Hire wolves"),
        "Hills of yellow trees, so alike that the eye gives up counting.",
        "One gust, and the whole forest answers at once.",
    ),
    Topic(
        "fireflies",
        "In a few forests thousands of fireflies flash in time, with no conductor",
        "Fireflies in step",
        "For two weeks in early summer a valley in the Great Smoky Mountains goes dark and bright like a single lamp. "
        "Thousands of males of one species flash together, five to eight times, and then stop together for several "
        "seconds so that the females in the grass can answer. No firefly gives the beat. Each one only nudges its own "
        "clock a little when it sees a neighbour's light. For a long time science was sure that the watchers were "
        "blinking. Then mathematicians proved that simple clocks that hear each other must fall into step.",
        "Thousands of strangers synchronised with no meeting and no calendar invite. And not one replied to all.",
        "When were you last in step with anybody?",
        ("At a concert", "On the stairs", "Never, I lead", "I am the pause"),
        "A black wood, and a hundred warm points of light between the trunks.",
        "They kindle together, die together; then six seconds of nothing.",
    ),
    Topic(
        "carrington",
        "In 1859 a solar storm let telegraphs run without batteries and woke people to make breakfast at midnight",
        "The Carrington night",
        "On 1 September 1859 Richard Carrington was drawing sunspots when two beads of white light broke out over "
        "them. Seventeen hours later the sky of the whole Earth caught fire. Aurora hung over Cuba. Gold miners in the "
        "Rocky Mountains got up and began to cook, sure that it was morning. Telegraphists received shocks from their "
        "keys; two of them, in Boston and Portland, took their batteries off and talked for two hours on the current "
        "from the sky. The same storm today would find rather more plugged in.",
        "They unplugged everything and it worked better. Every support line since has lived on that one night.",
        "The power is gone, the sky is green. You:",
        ("Make breakfast", "Take a picture", "Ask who else lost Wi-Fi", "At last, sleep"),
        "Green and violet curtains over a valley, one lit window below.",
        "The curtains sway; somebody in the cabin puts a kettle on.",
    ),
    Topic(
        "blackout",
        "When the lights went out in Los Angeles, people reported a strange cloud: the Milky Way",
        "Los Angeles looks up",
        "In January 1994, before dawn, an earthquake cut the power of Los Angeles. People ran out into streets darker "
        "than they had ever known and looked up. In the following days the observatory on the hill had calls about "
        "the odd sky of that night: so many stars, and a long silvery cloud among them. Had it come from the quake? "
        "The astronomers explained, as kindly as they could, that it is always there. About a third of mankind can no "
        "longer see its own galaxy from home. All it takes to bring it back is a switch.",
        "Two hundred billion suns, and the first thought was: that will be the earthquake.",
        "When did you last see the Milky Way?",
        ("This year", "As a child", "On a screen saver", "The what?"),
        "A city without light, and above it a sky that nobody there has seen.",
        "The last windows go out, and a river of stars comes forward.",
    ),
    Topic(
        "noons",
        "On one Sunday in 1883 American cities had noon twice",
        "Two noons in 1883",
        "Until 1883 every American town kept its own time by its own sun. The railways alone had some fifty of them, "
        "and one station could show three clocks that disagreed. On Sunday, 18 November, the companies simply changed "
        "over. East of each new line clocks were stopped for some minutes and noon was struck a second time; west of "
        "it, time jumped. Crowds stood in front of jewellers' shops to see it happen and went home a little "
        "disappointed. No parliament had been asked. The law followed thirty-five years later.",
        "Private companies changed time itself on a Sunday, and the government noticed in 1918.",
        "You are given noon twice. What is the second for?",
        ("A second lunch", "Arriving on time", "Undoing the first", "A nap"),
        "Roofs and towers on a bright day, the shadows at their shortest.",
        "The great hand stops; the birds go on; then it strikes again.",
    ),
    Topic(
        "dunes",
        "Some sand dunes sing loud enough to be heard ten kilometres away",
        "The singing dunes",
        "Marco Polo wrote that spirits of the desert fill the air with music and drums. He was not far off. On some "
        "thirty dunes in the world, a slide of dry, round, evenly sized grains begins to hum and swells to the sound "
        "of a low-flying propeller plane. It can go on for minutes and stays in tune: in Morocco it is close to a G "
        "sharp. The grains fall into step with each other, and the whole slope works like the skin of a loudspeaker. "
        "Bring the sand into a laboratory, and a handful in a jar still croaks.",
        "The desert has been giving concerts for ten thousand years and never once sold merchandise.",
        "What does your desert sing?",
        ("G sharp", "The fridge, at night", "An unanswered phone", "Silence, finally"),
        "A sharp crest against the evening sky, a small figure upon it.",
        "One step, and the slope begins to slide, and the slide begins to hum.",
    ),
    Topic(
        "catatumbo",
        "Over one river mouth in Venezuela lightning strikes on about half the nights of the year",
        "The lighthouse of Catatumbo",
        "Where the Catatumbo flows into Lake Maracaibo, a thunderstorm is waiting nearly every second night of the "
        "year. It starts after sunset, lasts up to nine hours and may flash more than twenty times a minute. Warm wet "
        "air comes in from the Caribbean, mountains on three sides hold it, the night lifts it. Seen from the sea the "
        "storm is so far off that it makes no sound at all. Sailors of the colonial age steered by it. Early in 2010 "
        "it stopped for weeks, in a drought, and people who had cursed it all their lives could not sleep.",
        "The only night shift in the world with perfect attendance, and even it burnt out in 2010.",
        "Could you sleep beside it?",
        ("Like a child", "With earplugs", "Only beside it", "I am the lightning"),
        "A boat on a black lake; behind it a tower of cloud, lit from inside.",
        "The cloud lights up without a sound, again, and again.",
    ),
    Topic(
        "nemo",
        "At the loneliest point of the ocean the nearest people are often astronauts",
        "Point Nemo",
        "In the South Pacific there is a spot almost 2,700 kilometres from the nearest land, in every direction. It is "
        "called Point Nemo, which is Latin for nobody. The currents bring hardly any food there, so there are hardly "
        "any fish either. When the space station passes overhead, at some four hundred kilometres, its crew are the "
        "nearest neighbours by far. And because nobody is there to be hit, that is where space agencies drop what they "
        "no longer need: more than 260 spacecraft lie on the ground around it, Mir among them.",
        "The quietest place on Earth, and we use it as a car park for dead spaceships.",
        "Two thousand kilometres from anybody. Bliss or horror?",
        ("Bliss", "Horror", "Is there signal?", "I live like that"),
        "One small sail on an empty ocean, more stars than water.",
        "A bright point crosses the sky: the neighbours are passing by.",
    ),
    Topic(
        "flash",
        "The last ray of the setting sun can be green",
        "The green flash",
        "Look at a clean sea horizon at sunset, and with luck the last edge of the sun turns green for a second. The "
        "air bends light like a weak prism, blue more than red, so the sun that we see is really a stack of coloured "
        "suns, a hair apart. The red one sets first. The blue one is scattered away. What remains on top, for a "
        "moment, is green. Jules Verne sent a whole novel after it, and his heroes miss it, because they are looking "
        "into each other's eyes. On Byrd's expedition to Antarctica it was watched for thirty-five minutes.",
        "They chased the ray through a whole novel and missed it for a kiss. He called it a happy ending.",
        "One second of green, or one look?",
        ("The ray", "The look", "Both, I can squint", "I was filming"),
        "The sun on the sea's edge, and a thin green rim above it.",
        "The disc sinks to a thread, the thread turns green and is gone.",
    ),
    Topic(
        "fog",
        "In the driest desert on Earth villages harvest their water from fog with nets",
        "The fog catchers",
        "Parts of the Atacama see no rain for years. But each morning the cold Pacific sends fog over the coastal "
        "hills, and it rolls inland without ever becoming a drop. So people put up nets, as plain as volleyball nets "
        "with a gutter under them. The fog passes through, beads form on the threads, run together and fall. One "
        "square metre can give several litres a day. At Chungungo in Chile a hundred such nets watered a village of "
        "three hundred, and they planted gardens. No pump, no power, no noise: only patience, hung up to dry.",
        "An entire village lived on what the weather forgot to drop. We ran out of milk and ordered an app.",
        "What would you catch with a net like that?",
        ("Water", "Monday mornings", "Lost thoughts", "Fog is enough"),
        "Layer on layer of mist over bare hills, somebody waiting on the ridge.",
        "The fog pours over the edge like slow water; the light comes through.",
    ),
    Topic(
        "snowflake",
        "A farmer in Vermont proved that no two snowflakes are alike by photographing more than five thousand",
        "Snowflake Bentley",
        "Wilson Bentley was given a microscope for his fifteenth birthday and looked at snow. He tried to draw it, but "
        "the crystals melted before he was done. So he fixed a bellows camera to the microscope, stood in an unheated "
        "shed and held his breath. On 15 January 1885 he had the first photograph of a single snow crystal. Five "
        "thousand followed in forty-six winters. The neighbours thought that he was wasting his time. He sold the "
        "pictures for five cents apiece to anybody who asked, and died of pneumonia after walking home through a "
        "snowstorm.",
        "Forty-six winters of work, five cents a picture. He invented content and the pay for it in one go.",
        "Five thousand snowflakes. What would you have stopped at?",
        ("One", "When my feet froze", "Five thousand and one", "I would have sold the shed"),
        "A cabin among snowy firs, two warm windows, large flakes in the air.",
        "The flakes come down one by one, and no two of them alike.",
    ),
    Topic(
        "moon",
        "The Moon moves away from us by about four centimetres every year, and we measure it with mirrors",
        "The departing Moon",
        "In 1969 the crew of Apollo 11 left a tray of mirrors in the dust, no larger than a suitcase. Ever since, "
        "observatories have shot laser light at it and waited two and a half seconds for the answer. Of all that light "
        "a single photon may come back, and that is enough. The Moon is leaving, at 3.8 centimetres a year, about as "
        "fast as a fingernail grows. The tides it raises brake the Earth, and the Moon takes up what we lose. One day "
        "there will be no total eclipse any more. There are six hundred million years left to buy the glasses.",
        "Even the Moon is slowly backing out of the conversation. Four centimetres a year: that is tact.",
        "It is leaving. What do you tell it?",
        ("Take your time", "Take me along", "Leave the tides", "Who is paying for the mirrors?"),
        "A full moon over a still lake, one long bright path on the water.",
        "The path trembles and narrows, as if something were being drawn away.",
    ),
    Topic(
        "harbour",
        "Foghorns were once tuned so that skippers could tell a coast by its note",
        "Voices of the coast",
        "Before satellites a skipper in fog had nothing but his ears. So every foghorn was given a voice of its own: "
        "so many seconds of sound, so many of silence, one tone or two, high or falling. The list stood in a book, and "
        "an old hand did not need it. The first steam horn was put up in 1859 in New Brunswick by Robert Foulis, who "
        "is said to have heard his daughter play the piano through thick fog: only the low notes arrived. He "
        "never patented it. Most of the horns are silent today, and people who grew up with them still wake up when "
        "it grows foggy.",
        "He heard his child practise from a mile away and thought: this could warn ships.",
        "What would your own signal be?",
        ("One long, one sigh", "Three short, coffee", "Silence, then guilt", "The piano, badly"),
        "A harbour at dusk, one lamp on the point, one boat on its way home.",
        "The boat answers the point; the point answers the boat.",
    ),
    Topic(
        "tree",
        "A pine in California was a sapling when the pyramids were being built, and its address is secret",
        "The oldest tree",
        "High in the White Mountains of California grows a bristlecone pine called Methuselah. It is more than 4,800 "
        "years old: it was there before the pyramids of Giza. It grows on bad soil, in thin cold air, with hardly any "
        "rain, and that is the secret. Nothing else wants to live there, nothing burns, nothing rots. In a poor year "
        "it adds less than a hair's breadth. In 1964 a student cut down a still older one in Nevada to count its "
        "rings. Since then nobody tells where Methuselah stands.",
        "The recipe for a long life: bad soil, no neighbours, and never tell anyone your address.",
        "What would you give up to live that long?",
        ("Comfort", "Company", "Cake", "No thanks, I have plans"),
        "One old tree on a hill, mist in the valley, mountains behind.",
        "The mist goes, the birds go; the tree has seen it before.",
    ),
)
