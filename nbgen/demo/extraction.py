"""Sentences with facts in them, to be written as JSON."""

import json
import random

from nbgen.demo import reviews
from nbgen.demo.arithmetic import Exchange
from nbgen.demo.wording import wording
from nbgen.demo.words import any_name, with_article, words

say = wording("extraction")


def person(rng: random.Random) -> tuple[str, dict[str, str | int]]:
    """A sentence about somebody with the facts that it holds."""
    facts = {
        "name": any_name(rng),
        "age": rng.randrange(1, 100),
        "city": rng.choice(words.cities),
        "job": rng.choice(words.jobs),
    }
    sentence, keys = rng.choice(say.person)
    return sentence.format(**facts | {"job": facts["job"] if "works as" in sentence else with_article(facts["job"])}), {
        key: facts[key] for key in keys.split()
    }


def order(rng: random.Random) -> tuple[str, dict[str, str | int]]:
    """A sentence about a purchase with the facts that it holds."""
    facts = {
        "item": rng.choice(reviews.say.products + words.fruits),
        "price": rng.randrange(1, 100),
        "colour": rng.choice(words.colours),
    }
    sentence, keys = rng.choice(say.order)
    return sentence.format(**facts), {key: facts[key] for key in keys.split()}


def json_extraction(rng: random.Random) -> Exchange:
    """The facts of a sentence as a JSON object, with the keys that were asked for."""
    text, facts = rng.choices([person, order], [3, 1])[0](rng)
    keys = rng.sample(list(facts), rng.randrange(2, len(facts) + 1))
    asked = ", ".join(keys[:-1]) + " and " + keys[-1]
    return rng.choice(say.extract).format(keys=asked, text=text), json.dumps(
        {key: facts[key] for key in keys}, ensure_ascii=False
    )
