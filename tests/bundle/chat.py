"""Simple chat: the second half of the test bundle's texts. Each function is as in `problems`."""

from __future__ import annotations

import random

from tests.bundle.problems import Make, Turn, problem
from tests.bundle.words import (
    ANIMALS,
    COLORS,
    DAYS,
    FOODS,
    HOBBIES,
    JOBS,
    MONTHS,
    NUMBERS,
    OPPOSITES,
    PLACES,
    QUANTITIES,
    SOUNDS,
    TASKS,
    listed,
    pair,
    person,
)


def meeting(rng: random.Random) -> Turn:
    name, _ = person(rng)
    place, job = rng.choice(PLACES), rng.choice(JOBS)
    said = rng.choice(
        (
            f"Hello, I am {name} from {place} and I work as a {job}.",
            f"Hi! My name is {name}. I am a {job} and I live in {place}.",
            f"Good morning. I come from {place}, my name is {name} and I am a {job}.",
        )
    )
    return said, (
        f"Hello {name}! It is nice to meet a {job} from {place}. What can I do for you "
        f"today, {name}?"
    )


def liking(rng: random.Random) -> Turn:
    name, he = person(rng)
    foods, hobby = rng.sample(FOODS, 3), rng.choice(HOBBIES)
    said = rng.choice(
        (
            f"My friend {name} likes {listed(foods)}. {name} also enjoys {hobby}. "
            f"What does {name} like?",
            f"{name} enjoys {hobby} and eats {listed(foods)}. Tell me what {name} likes.",
        )
    )
    return said, (
        f"So {name} likes {foods[0]}, {foods[1]} and {foods[2]}. Besides eating, {he} enjoys "
        f"{hobby}."
    )


def planning(rng: random.Random) -> Turn:
    name, _ = person(rng)
    tasks, day = rng.sample(TASKS, 3), rng.choice(DAYS)
    said = rng.choice(
        (
            f"Write a plan for {name}. On {day} {name} has to {listed(tasks)}.",
            f"On {day} {name} wants to {listed(tasks)}. Please make a plan.",
        )
    )
    times = ("In the morning", "At noon", "In the evening")
    lines = [
        f"{number}. {time}: {task}."
        for number, (time, task) in enumerate(zip(times, tasks, strict=True), 1)
    ]
    return said, f"Here is the plan for {name} on {day}:\n" + "\n".join(lines)


def repeating(rng: random.Random) -> Turn:
    words = rng.sample([*FOODS, *ANIMALS, *COLORS, *PLACES], rng.randint(3, 8))
    words.insert(rng.randrange(len(words)), person(rng)[0])
    text = " ".join(words)
    said = rng.choice((f"Repeat these words: {text}", f"Please say after me: {text}"))
    return said, f"Here are your words: {text}"


def quoting(rng: random.Random) -> Turn:
    """The longest texts that follow word for word from what was asked."""
    text, _ = problem(rng)
    said = rng.choice((f"Please repeat my question. {text}", f"Say this once more. {text}"))
    return said, f"You said this. {text}"


def sorting(rng: random.Random) -> Turn:
    words = rng.sample(rng.choice((FOODS, ANIMALS)), rng.randint(3, 5))
    said = rng.choice(
        (
            f"Put these words in alphabetical order: {', '.join(words)}.",
            f"Sort these words by the alphabet: {', '.join(words)}.",
        )
    )
    return said, f"In alphabetical order: {', '.join(sorted(words))}."


def reversing(rng: random.Random) -> Turn:
    words = rng.sample(ANIMALS, rng.randint(3, 5))
    said = f"Write this list backwards: {', '.join(words)}."
    return said, f"Backwards the list is: {', '.join(reversed(words))}."


def counting(rng: random.Random) -> Turn:
    first = rng.randint(0, 60)
    last = first + rng.randint(3, 9)
    if rng.random() < 0.5:
        return (
            f"Count from {first} to {last}.",
            f"{', '.join(map(str, range(first, last + 1)))}. That is {last}.",
        )
    first, last = rng.randint(0, 8), rng.randint(11, 15)
    return (
        f"Count from {NUMBERS[first]} to {NUMBERS[last]} in words.",
        f"{', '.join(NUMBERS[first : last + 1])}. That is {NUMBERS[last]}.",
    )


def opposite(rng: random.Random) -> Turn:
    one, other = pair(rng, OPPOSITES)
    if rng.random() < 0.5:
        one, other = other, one
    said = rng.choice((f"What is the opposite of {one}?", f"Tell me the opposite of {one}."))
    return said, f'The opposite of "{one}" is "{other}".'


def sounds(rng: random.Random) -> Turn:
    animal, sound = pair(rng, SOUNDS)
    article = "an" if animal[0] in "aeiou" else "a"
    return (
        rng.choice(
            (f"What does {article} {animal} do?", f"Which sound does {article} {animal} make?")
        ),
        f"{article.title()} {animal} can {sound}. If you hear a {sound}, it may be "
        f"{article} {animal}.",
    )


def describing(rng: random.Random) -> Turn:
    """As JSON."""
    name, _ = person(rng)
    place, job, age = rng.choice(PLACES), rng.choice(JOBS), rng.randint(18, 79)
    hobbies = rng.sample(HOBBIES, 2)
    said = rng.choice(
        (
            f"Write this as JSON: {name} is {age}, lives in {place}, works as a {job} and likes "
            f"{hobbies[0]} and {hobbies[1]}.",
            f"{name} is a {job} of {age} years from {place} who likes {hobbies[0]} and "
            f"{hobbies[1]}. Give me the facts as JSON.",
        )
    )
    return said, (
        f'{{"name": "{name}", "age": {age}, "city": "{place}", "job": "{job}", '
        f'"hobbies": ["{hobbies[0]}", "{hobbies[1]}"]}}'
    )


def telling(rng: random.Random) -> Turn:
    name, he = person(rng)
    animal, color, place = rng.choice(ANIMALS), rng.choice(COLORS), rng.choice(PLACES)
    said = rng.choice(
        (
            f"Tell me a story about {name} and a {color} {animal} in {place}.",
            f"I want a story about a {color} {animal} from {place} and a child named {name}.",
        )
    )
    return said, (
        f"Once upon a time there was a {color} {animal} in {place}. One day {name} met the {color} "
        f'{animal}. "Who are you?" asked {name}. "I am the {animal} of {place}," said the '
        f"{animal}. From that day on {name} and the {color} {animal} were friends, and {he} came "
        f"to {place} every summer."
    )


def coding(rng: random.Random) -> Turn:
    verb, sign = rng.choice((("add", "+"), ("subtract", "-"), ("multiply", "*"), ("divide", "/")))
    value = rng.choice(QUANTITIES)
    number = rng.randint(2, 40)
    said = rng.choice(
        (
            f"Write a Python function that can {verb} a {value} and {number}.",
            f"I need Python code: a function to {verb} a {value} and {number}.",
        )
    )
    name = f"{verb}_{value}"
    return said, (
        f"def {name}({value}):\n    result = {value} {sign} {number}\n    return result\n\n"
        f"print({name}({number}))"
    )


def dates(rng: random.Random) -> Turn:
    words, kind = (DAYS, "day") if rng.random() < 0.5 else (MONTHS, "month")
    at = rng.randrange(len(words))
    before, after = words[at - 1], words[(at + 1) % len(words)]
    return (
        rng.choice((f"Which {kind} comes after {words[at]}?", f"What follows {words[at]}?")),
        f"After {words[at]} comes {after}, and before {words[at]} comes {before}.",
    )


def thanks(rng: random.Random) -> Turn:
    name, _ = person(rng)
    return (
        rng.choice((f"Thank you! Say hello to {name}.", f"Thanks, and greetings to {name}!")),
        f"You are welcome! I will say hello to {name}. Have a nice day!",
    )


def chat(rng: random.Random) -> Turn:
    """One of all kinds; a third of them repeats something, from which copying is learnt."""
    kind = rng.choices((repeating, quoting, rng.choice(_OTHERS)), (1, 1, 4))[0]
    return kind(rng)


_OTHERS: tuple[Make, ...] = (
    meeting, liking, planning, sorting, reversing, counting, opposite, sounds, describing, telling,
    coding, dates, thanks,
)  # fmt: skip
