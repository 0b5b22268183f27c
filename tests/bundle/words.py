"""Words for the grammar of the test bundle's texts."""

from __future__ import annotations

import random


def _words(text: str, between: str = " ") -> list[str]:
    return text.split(between)


WOMEN = _words(
    "Anna Bella Carla Dora Elena Fiona Grace Hanna Ines Julia Kate Lucy Maria Nina Olga Paula "
    "Quinta Rosa Sara Tara Uma Vera Wanda Xenia Yara Zoe Alice Clara Emma Ida Laura Mona"
)
MEN = _words(
    "Adam Ben Carlo David Emil Felix Georg Henry Ivan Jack Karl Leo Mark Noah Oscar Paul "
    "Quentin Robert Sam Tom Ulrich Victor Will Xavier Yusuf Zeno Arthur Bruno Conrad Hugo Martin"
)
# Names of two or three of these are many, so nobody can know them by heart.
BEGINS = "Ba Bri Cor Da Do El Fa Gal Ha Jo Ka Kor La Lu Ma Mir No Or Pe Ra Ro Sa Sel Ti Va Wen Zu"
MIDDLES = "ba da di fe go la li lo ma mi na no ra ri ro sa te ti va vi"
ENDS = {"she": "na la ra ria sa lin da", "he": "n r s ton ras mir dor"}

ITEMS = _words(
    "apple:apples pear:pears lemon:lemons orange:oranges pencil:pencils notebook:notebooks "
    "sticker:stickers marble:marbles ticket:tickets candle:candles cookie:cookies button:buttons "
    "flower:flowers shell:shells stamp:stamps balloon:balloons ribbon:ribbons book:books cup:cups "
    "plate:plates spoon:spoons muffin:muffins egg:eggs card:cards coin:coins bead:beads toy:toys "
    "brush:brushes carrot:carrots potato:potatoes onion:onions melon:melons lamp:lamps map:maps"
)
BOXES = _words(
    "box:boxes bag:bags basket:baskets jar:jars crate:crates drawer:drawers packet:packets"
)
FRIENDS = _words("sister brother friend cousin neighbor teacher aunt uncle mother father")
PLACES = _words(
    "Lisbon Berlin Oslo Paris Madrid Vienna Cairo Lima Quito Dublin Athens Prague Rome Boston "
    "Denver Geneva Havana Kyoto Milan Naples Porto Riga Seville Tunis Utrecht Warsaw Zagreb"
)
SHOPS = _words("market:shop:bakery:library:kiosk:fair:bookstore:garden store", ":")
VEHICLES = _words("train:bus:truck:boat:car:bicycle:van:tram", ":")
ANIMALS = _words(
    "badger bear camel cat cow crow deer dog donkey dove duck eagle fox frog goat goose hare hen "
    "horse lamb lion lynx mole mouse otter owl panda pig rabbit raven seal sheep swan tiger toad "
    "turtle whale wolf zebra"
)
FOODS = _words(
    "bananas beans bread butter cheese cherries corn figs fish grapes honey jam milk mushrooms "
    "noodles nuts olives pancakes peas plums rice salad soup spinach tea toast tomatoes walnuts"
)
HOBBIES = _words(
    "baking:chess:climbing:dancing:drawing:fishing:gardening:hiking:knitting:painting:reading:"
    "rowing:running:sailing:singing:skating:swimming:writing letters:playing the piano:"
    "riding horses:building models:watching birds:collecting stones",
    ":",
)
TASKS = _words(
    "water the plants:feed the cat:call the bank:clean the kitchen:write a report:buy some bread:"
    "visit the library:repair the bicycle:paint the fence:wash the car:cook a soup:pack the bags:"
    "read a chapter:walk the dog:answer the letters:sort the photos:mow the lawn:bake a cake:"
    "practice the violin:meet an old friend:order new shoes:plan the holiday",
    ":",
)
COLORS = _words("red blue green yellow black white brown gray purple pink golden silver")
JOBS = _words(
    "baker doctor farmer painter pilot teacher nurse sailor singer tailor carpenter gardener "
    "mechanic librarian cook"
)
OPPOSITES = _words(
    "hot:cold big:small fast:slow high:low early:late open:closed full:empty light:dark old:new "
    "wet:dry hard:soft loud:quiet strong:weak thick:thin wide:narrow rich:poor near:far "
    "clean:dirty happy:sad sharp:blunt deep:shallow true:false left:right inside:outside"
)
SOUNDS = _words(
    "dog:bark cat:meow cow:moo duck:quack frog:croak horse:neigh lion:roar mouse:squeak owl:hoot "
    "pig:grunt sheep:bleat wolf:howl crow:caw donkey:bray goose:honk"
)
NUMBERS = _words(
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen "
    "sixteen seventeen eighteen nineteen twenty"
)
QUANTITIES = _words("price width height speed weight length score total depth rate")
DAYS = _words("Monday Tuesday Wednesday Thursday Friday Saturday Sunday")
MONTHS = _words(
    "January February March April May June July August September October November December"
)


def person(rng: random.Random) -> tuple[str, str]:
    """(name, "he" or "she"); two of five names are made up."""
    pronoun = rng.choice(("he", "she"))
    if rng.random() < 0.6:
        return rng.choice(WOMEN if pronoun == "she" else MEN), pronoun
    parts = [rng.choice(BEGINS.split()), rng.choice(MIDDLES.split())]
    if rng.random() < 0.3:
        parts.append(rng.choice(MIDDLES.split()))
    return "".join(parts) + rng.choice(ENDS[pronoun].split()), pronoun


def pair(rng: random.Random, words: list[str]) -> tuple[str, str]:
    """The two halves of one of the entries."""
    first, _, second = rng.choice(words).partition(":")
    return first, second


def listed(words: list[str]) -> str:
    """`a, b and c`."""
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"
