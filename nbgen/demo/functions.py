"""Functions as a chat offers them, what is asked of them, how they are called and what they return.

Knows nothing of whole chats, nor of tokens.
"""

import json
import random
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from nbgen.demo import reviews
from nbgen.demo.arithmetic import Exchange
from nbgen.demo.wording import wording
from nbgen.demo.words import any_name, made_up_word, words

say = wording("functions")
KNOWN = 0.45
CAPITALISED = 0.75
HEARD = 0.6
ODD = 0.15


@dataclass(frozen=True)
class Argument:
    """An argument: its name, the kind of its values, and these where it has but some."""

    name: str
    kind: str
    options: tuple[str, ...] = ()

    @property
    def type(self) -> str:
        """As the chat template shows it."""
        return " | ".join(map(json.dumps, self.options)) or say.types.get(self.kind, "string")


@dataclass(frozen=True)
class Function:
    """A function: its arguments, the names of those that may be left out, and how it is asked for."""

    name: str
    tells: str
    arguments: tuple[Argument, ...]
    optional: frozenset[str]
    asks: tuple[str, ...]
    gives: str

    @property
    def signature(self) -> str:
        """The line by which the chat template shows it."""
        told = (f"{each.name}{'?' if each.name in self.optional else ''}: {each.type}" for each in self.arguments)
        return f"{self.name}({', '.join(told)})" + (f" {self.tells}" if self.tells else "")


def any_function(rng: random.Random) -> Function:
    """A function that is well known, or one of any name."""
    if rng.random() < KNOWN:
        known = SimpleNamespace(**rng.choice(say.known))
        name = rng.choice(known.names)
        asks = tuple(ask.replace("{name}", name) for ask in known.asks)
        return made(rng, name, rng.choice(known.tells), known.args, asks, known.gives)
    return other_function(rng, made_up_word(rng) if rng.random() > HEARD else "")


def other_function(rng: random.Random, word: str = "") -> Function:
    """A function of any name, which is in what people ask."""
    other, kind = SimpleNamespace(**say.other), rng.choice(list(say.kinds))
    if rng.random() < 0.7:
        noun = word or rng.choice(other.nouns)
        name, tells = rng.choice(other.of).format(noun), rng.choice(other.tells_noun).format(noun)
        return made(rng, name, tells, [kind], tuple(ask.replace("{noun}", noun) for ask in other.asks_noun), "any")
    verb = word or rng.choice(other.verbs)
    name, tells = rng.choice(other.does).format(verb), rng.choice(other.tells_verb).format(verb)
    asks = tuple(ask.replace("{verb}", verb) for ask in other.asks_verb)
    return made(rng, name, tells, [kind], asks, rng.choice(["any", "nothing"]))


def made(rng: random.Random, name: str, tells: str, kinds: list[str], asks: tuple[str, ...], gives: str) -> Function:
    """A function whose arguments have names that are used for their kinds, or others; its description may be odd."""
    names = argument_names(kinds, rng)
    arguments = tuple(
        Argument(each, kind, options(rng) if kind == "option" else ()) for each, kind in zip(names, kinds, strict=True)
    )
    optional = (each for place, each in enumerate(names) if any(f"{{{place}}}" not in ask for ask in asks))
    if rng.random() < ODD:
        tells = value("phrase", rng).capitalize() + "."
    return Function(name, tells, arguments, frozenset(optional), asks, gives)


def argument_names(kinds: list[str], rng: random.Random) -> list[str]:
    """A name for the argument of each kind."""
    if len(set(kinds)) < len(kinds):
        return rng.choice(say.pairs[kinds[0]])
    return [made_up_word(rng) if rng.random() < ODD else rng.choice(say.kinds[kind]) for kind in kinds]


def options(rng: random.Random) -> tuple[str, ...]:
    """The values that an argument has."""
    drawn = rng.sample(words.colours + words.fruits + words.jobs, rng.randrange(2, 5))
    return tuple(rng.choice([*say.options, drawn, drawn]))


def value(kind: str, rng: random.Random) -> Any:
    """Something that is given for an argument."""
    match kind:
        case "whole":
            return rng.randrange(10 ** rng.randrange(1, 5))
        case "decimal":
            return rng.choice([rng.randrange(100), round(rng.random() * 100, rng.randrange(1, 3))])
        case "city":
            return rng.choice(words.cities) if rng.random() < HEARD else made_up_word(rng).capitalize()
        case "person":
            return any_name(rng)
        case "country":
            return rng.choice(list(words.capitals))
        case "day":
            return rng.choice([*words.days, "today", "tomorrow"])
        case "thing":
            return rng.choice(reviews.say.products + words.common) if rng.random() < HEARD else made_up_word(rng)
    pool = words.common + words.animals + [made_up_word(rng) for _ in range(30)]
    return " ".join(rng.choices(pool, k=rng.randrange(1, 5)))


def asked(function: Function, rng: random.Random) -> Exchange:
    """A question to a function, and the call that answers it."""
    question = rng.choice(function.asks)
    values = [rng.choice(each.options) if each.options else value(each.kind, rng) for each in function.arguments]
    named = zip(function.arguments, values, strict=True)
    given = {each.name: said for place, (each, said) in enumerate(named) if f"{{{place}}}" in question}
    text = question.format(*values)
    return text[:1].upper() + text[1:] if rng.random() < CAPITALISED else text, call(function.name, given)


def call(name: str, arguments: dict[str, Any]) -> str:
    """A call as the chat template writes it."""
    told = json.dumps({"name": name, "arguments": arguments}, ensure_ascii=False)
    return f"<tool_call>{told}</tool_call>"


def result(function: Function, rng: random.Random) -> Exchange:
    """What a function returns, and what is said of it; the latter without words around it, "" for nothing."""
    results = SimpleNamespace(**say.results)
    kind = (
        function.gives if function.gives != "any" else rng.choice(["number", "text", "text", "facts", "price", "list"])
    )
    match kind:
        case "nothing":
            return rng.choice(results.nothing), ""
        case "weather":
            facts = {"temp": rng.randrange(-20, 40), "sky": rng.choice(results.skies)}
            text = rng.choice(results.weather).format(**facts)
            return rng.choice([(text, text.removesuffix(".")), of_facts(facts, rng)])
        case "facts":
            return of_facts({}, rng)
        case "list":
            found = [value(rng.choice(["thing", "person", "whole"]), rng) for _ in range(rng.randrange(1, 5))]
            return json.dumps(found, ensure_ascii=False), ", ".join(map(str, found))
        case "text":
            text = value(rng.choice(["phrase", "person", "city", "thing"]), rng)
            return text, text
    text = {
        "number": str(value(rng.choice(["whole", "decimal"]), rng)),
        "degrees": f"{rng.randrange(-20, 40)}{rng.choice(['', ' degrees', ' C'])}",
        "time": f"{rng.randrange(24)}:{rng.randrange(60):02}",
        "price": f"{rng.randrange(1, 1000)}{rng.choice(['', ' euros', ' dollars', '.99', ' EUR'])}",
    }[kind]
    return text, text


def of_facts(facts: dict[str, Any], rng: random.Random) -> Exchange:
    """A JSON object that is returned, and its content in words."""
    if not facts:
        keys = rng.sample(say.results["keys"], rng.randrange(1, 4))
        facts = {key: value(rng.choice(["whole", "thing", "city"]), rng) for key in keys}
    return json.dumps(facts, ensure_ascii=False), ", ".join(f"{key} {each}" for key, each in facts.items())


def failure(rng: random.Random) -> str:
    """What is returned by a function that raised an error."""
    results = SimpleNamespace(**say.results)
    return f"{rng.choice(results.errors)}: " + rng.choice(results.reasons).format(value("thing", rng))
