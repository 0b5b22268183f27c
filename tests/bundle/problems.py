"""Arithmetic word problems with worked answers: the first half of the test bundle's texts.

Each function makes (question, answer) of a generator of choices. How a question is put is left to
chance; its answer follows from it, so that a small model can be sure of what it writes.
"""

from __future__ import annotations

import random
from collections.abc import Callable

from tests.bundle.words import BOXES, FRIENDS, ITEMS, PLACES, SHOPS, VEHICLES, pair, person

Turn = tuple[str, str]
Make = Callable[[random.Random], Turn]


def _end(number: int, unit: str = "") -> str:
    return f"\nThe answer is {number}{' ' + unit if unit else ''}."


def buying(rng: random.Random) -> Turn:
    name, he = person(rng)
    one, many = pair(rng, ITEMS)
    number, price, shop = rng.randint(2, 12), rng.randint(2, 12), rng.choice(SHOPS)
    asked = rng.choice(
        (
            f"{name} buys {number} {many} at the {shop}. Each {one} costs ${price}. "
            f"How much does {he} pay?",
            f"At the {shop} one {one} costs ${price}. {name} takes {number} {many}. "
            f"How many dollars does {he} pay?",
            f"How much does {name} pay at the {shop} for {number} {many} at ${price} each?",
        )
    )
    total = number * price
    return asked, (
        f"{name} buys {number} {many} and each {one} costs ${price}.\n"
        f"{number} * {price} = {total}, so {name} pays ${total} at the {shop}."
        f"{_end(total, 'dollars')}"
    )


def giving(rng: random.Random) -> Turn:
    name, he = person(rng)
    _, many = pair(rng, ITEMS)
    given, left, friend = rng.randint(2, 30), rng.randint(2, 40), rng.choice(FRIENDS)
    his = "his" if he == "he" else "her"
    had = given + left
    asked = rng.choice(
        (
            f"{name} has {had} {many} and gives {given} of them to {his} {friend}. "
            f"How many {many} does {he} have left?",
            f"{name} had {had} {many}. {his.title()} {friend} got {given} of them. "
            f"How many {many} are left?",
        )
    )
    return asked, (
        f"{name} starts with {had} {many}. The {friend} gets {given} {many}.\n"
        f"{had} - {given} = {left}, so {name} has {left} {many} left.{_end(left, many)}"
    )


def sharing(rng: random.Random) -> Turn:
    name, _ = person(rng)
    _, many = pair(rng, ITEMS)
    box, boxes = pair(rng, BOXES)
    number, each = rng.randint(2, 10), rng.randint(2, 12)
    total = number * each
    asked = rng.choice(
        (
            f"{name} puts {total} {many} into {number} {boxes}, the same number into each. "
            f"How many {many} are in one {box}?",
            f"There are {total} {many} and {number} {boxes}. {name} fills every {box} with the "
            f"same number of {many}. How many go into each {box}?",
        )
    )
    return asked, (
        f"{name} has {total} {many} for {number} {boxes}.\n"
        f"{total} / {number} = {each}, so each {box} holds {each} {many}.{_end(each, many)}"
    )


def boxes(rng: random.Random) -> Turn:
    name, he = person(rng)
    _, many = pair(rng, ITEMS)
    box, plural = pair(rng, BOXES)
    number, each, more = rng.randint(2, 9), rng.randint(2, 11), rng.randint(2, 20)
    product = number * each
    asked = (
        f"{name} has {number} {plural} with {each} {many} in each {box}, and {more} more {many} on "
        f"the table. How many {many} does {he} have in all?"
    )
    return asked, (
        f"In the {plural} there are {number} * {each} = {product} {many}.\n"
        f"With the {more} {many} on the table that makes {product} + {more} = {product + more}, so "
        f"{name} has {product + more} {many} in all.{_end(product + more, many)}"
    )


def together(rng: random.Random) -> Turn:
    (first, _), (second, _), (third, _) = (person(rng) for _ in range(3))
    _, many = pair(rng, ITEMS)
    a, b, c = (rng.randint(2, 30) for _ in range(3))
    asked = rng.choice(
        (
            f"{first} has {a} {many}, {second} has {b} {many} and {third} has {c} {many}. "
            f"How many {many} do {first}, {second} and {third} have together?",
            f"{first} finds {a} {many}. {second} finds {b} and {third} finds {c}. "
            f"How many {many} do they have together?",
        )
    )
    return asked, (
        f"{first} has {a} {many}, {second} has {b} {many} and {third} has {c} {many}.\n"
        f"{a} + {b} = {a + b} and {a + b} + {c} = {a + b + c}, so {first}, {second} and {third} "
        f"have {a + b + c} {many} together.{_end(a + b + c, many)}"
    )


def comparing(rng: random.Random) -> Turn:
    (first, _), (second, _) = person(rng), person(rng)
    _, many = pair(rng, ITEMS)
    small, more = rng.randint(2, 40), rng.randint(2, 30)
    asked = rng.choice(
        (
            f"{first} has {small} {many}. {second} has {more} more {many} than {first}. "
            f"How many {many} does {second} have?",
            f"{second} has {more} more {many} than {first}, who has {small}. "
            f"How many {many} are that?",
        )
    )
    total = small + more
    return asked, (
        f"{first} has {small} {many} and {second} has {more} more.\n"
        f"{small} + {more} = {total}, so {second} has {total} {many}.{_end(total, many)}"
    )


def travelling(rng: random.Random) -> Turn:
    vehicle = rng.choice(VEHICLES)
    start, goal = rng.sample(PLACES, 2)
    hours, speed = rng.randint(2, 9), 10 * rng.randint(2, 12)
    distance = hours * speed
    if rng.random() < 0.5:
        return (
            f"A {vehicle} goes from {start} to {goal} at {speed} miles an hour. The trip takes "
            f"{hours} hours. How far is it from {start} to {goal}?"
        ), (
            f"The {vehicle} goes {speed} miles in one hour and drives for {hours} hours.\n"
            f"{hours} * {speed} = {distance}, so it is {distance} miles from {start} to {goal}."
            f"{_end(distance, 'miles')}"
        )
    return (
        f"It is {distance} miles from {start} to {goal}. A {vehicle} goes {speed} miles an hour. "
        f"How many hours does it need?"
    ), (
        f"The {vehicle} goes {speed} miles in one hour and has {distance} miles to go.\n"
        f"{distance} / {speed} = {hours}, so the {vehicle} needs {hours} hours from {start} to "
        f"{goal}.{_end(hours, 'hours')}"
    )


def saving(rng: random.Random) -> Turn:
    name, he = person(rng)
    one, _ = pair(rng, ITEMS)
    weekly, weeks, spent = rng.randint(3, 12), rng.randint(3, 10), rng.randint(2, 8)
    saved = weekly * weeks
    asked = (
        f"{name} saves ${weekly} a week for {weeks} weeks. Then {he} buys a {one} for ${spent}. "
        f"How much money does {he} have left?"
    )
    return asked, (
        f"In {weeks} weeks {name} saves {weeks} * {weekly} = {saved} dollars.\n"
        f"After buying the {one} for ${spent} there are {saved} - {spent} = {saved - spent} "
        f"dollars, so {name} has ${saved - spent} left.{_end(saved - spent, 'dollars')}"
    )


def ages(rng: random.Random) -> Turn:
    (first, _), (second, _) = person(rng), person(rng)
    age, more, years = rng.randint(4, 30), rng.randint(2, 15), rng.randint(2, 12)
    asked = (
        f"{first} is {age} years old. {second} is {more} years older than {first}. "
        f"How old will {second} be in {years} years?"
    )
    now = age + more
    return asked, (
        f"{second} is {age} + {more} = {now} years old now.\n"
        f"In {years} years {second} will be {now} + {years} = {now + years} years old."
        f"{_end(now + years, 'years')}"
    )


def plain(rng: random.Random) -> Turn:
    if rng.random() < 0.5:
        a, b = rng.randint(2, 99), rng.randint(2, 99)
        return f"What is {a} + {b}?", f"{a} + {b} = {a + b}.{_end(a + b)}"
    a, b = rng.randint(2, 12), rng.randint(2, 12)
    return f"What is {a} * {b}?", f"{a} * {b} = {a * b}.{_end(a * b)}"


# How a problem is announced, and how the answer begins: no name stands at the front, where it would
# be spelt with other tokens than behind a blank.
_OPENINGS = (
    ("Problem:", "Solution:"),
    ("Please solve this.", "Let us see."),
    ("Homework:", "Here is the way:"),
    ("I have a question.", "Here is the answer:"),
    ("Can you help me?", "Sure."),
)


def problem(rng: random.Random) -> Turn:
    """One of all kinds."""
    asked, answer = rng.choice(_KINDS)(rng)
    opening, reply = rng.choice(_OPENINGS)
    return f"{opening} {asked}", f"{reply} {answer}"


_KINDS: tuple[Make, ...] = (
    buying, giving, sharing, boxes, together, comparing, travelling, saving, ages, plain,
)  # fmt: skip
