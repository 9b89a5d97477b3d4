"""Short and long stories from a grammar, and the requests that ask for them."""

import random

from nbgen.demo.wording import wording
from nbgen.demo.words import any_name, with_article, words

say = wording("stories")
HEROES = words.animals + say.heroes


def opening(hero: str, name: str, place: str, rng: random.Random) -> list[str]:
    """Who it is about, and where."""
    trait, wish = rng.sample(say.traits, 2), rng.choice(say.wishes)
    where = rng.choice(["in", "near", "not far from"]) + " " + with_article(place)
    return [
        f"Once upon a time there was {with_article(trait[0])} {hero} named {name}, who lived {where}.",
        f"{name} was very {trait[1]}, and wanted more than anything {wish}.",
    ]


def meeting(hero: str, name: str, rng: random.Random) -> list[str]:
    """Somebody else comes along and helps."""
    other, friend = rng.choice([each for each in HEROES if each != hero]), any_name(rng)
    thing = rng.choice(say.things)
    return [
        f"One day {name} found {thing} under a tree.",
        rng.choice(say.weathers),
        f'Then {with_article(other)} named {friend} came by and asked: "Where are you going, {hero}?"',
        f'"I do not know yet," said {name}, "but will you come with me?"',
        f"So {name} and {friend} went on together.",
    ]


def trouble(name: str, rng: random.Random) -> list[str]:
    """Something stands in the way, and is overcome."""
    helper = rng.choice(HEROES)
    return [
        rng.choice(["But soon", "Then", "After a while", "On the next day"]) + f" {rng.choice(say.troubles)}.",
        f'"What shall we do now?" asked {name}.',
        f"An old {helper} who sat by the road {rng.choice(say.helps)}, and so they could go on.",
    ]


def ending(name: str, place: str, rng: random.Random) -> list[str]:
    """Home again."""
    return [
        f"At last {name} came back to the {place}, tired and happy.",
        rng.choice(
            [
                f"From that day on {name} was never alone.",
                "All the neighbours came to hear what had happened.",
                f"{name} slept well that night.",
            ]
        ),
        rng.choice(say.morals),
    ]


def short_story(hero: str, name: str, place: str, rng: random.Random) -> str:
    """One paragraph of some eighty tokens."""
    middle = rng.choice([meeting(hero, name, rng)[:1], trouble(name, rng)])
    return " ".join(opening(hero, name, place, rng) + middle + ending(name, place, rng))


def long_story(hero: str, name: str, place: str, rng: random.Random) -> str:
    """Four to six paragraphs."""
    parts = [opening(hero, name, place, rng), meeting(hero, name, rng)]
    parts += [trouble(name, rng) for _ in range(rng.randrange(1, 4))]
    return "\n\n".join(" ".join(part) for part in [*parts, ending(name, place, rng)])


def exchange(rng: random.Random) -> tuple[str, str]:
    """A request for a story, and the story."""
    hero, name, place = rng.choice(HEROES), any_name(rng), rng.choice(say.places)
    long = rng.random() < 0.3
    about = rng.choice(
        [
            "",
            f" about {with_article(hero)}",
            f" about {with_article(hero)}",
            f" about the {hero}",
            f" about {with_article(hero)} named {name}",
            f" about {with_article(hero)} called {name}",
            f" about {with_article(hero)} in {with_article(place)}",
        ]
    )
    story = (long_story if long else short_story)(hero, name, place, rng)
    return rng.choice(say.long_asks if long else say.asks) + about + rng.choice([".", ".", "", "!", " please"]), story


def story(rng: random.Random) -> str:
    """A story by itself."""
    tell = rng.choice([short_story, long_story])
    return tell(rng.choice(HEROES), any_name(rng), rng.choice(say.places), rng)
