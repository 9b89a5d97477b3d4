"""Short reviews of products, to be called positive or negative."""

import random

from nbgen.demo.arithmetic import Exchange
from nbgen.demo.wording import wording

say = wording("reviews")


def review(rng: random.Random, good: bool) -> str:
    """A short review of some product."""
    side = say.good if good else say.bad
    product, word = rng.choice(say.products), rng.choice(side["words"])
    verdict = rng.choice(say.verdicts).format(product, word)
    other = rng.choice(side["sentences"]).format(product)
    return rng.choice([verdict, other, f"{verdict} {other}", f"{other} {verdict}"])


def sentiment(rng: random.Random) -> Exchange:
    """Whether a review is positive or negative."""
    good = rng.random() < 0.5
    return rng.choice(say.sentiment).format(review(rng, good)), "positive" if good else "negative"
