"""Functions of the notebook that a model may want called: how they are described, and called."""

import asyncio
import dataclasses
import enum
import functools
import json
import signal
import sys
import threading
from typing import Annotated, Any, Literal, TypedDict

import annotated_types
import msgspec
import pydantic
import pytest

from nbgen.errors import InvalidRequest
from nbgen.notebook.result import Result
from nbgen.notebook.text_stream import TextStream
from nbgen.notebook.tools import MAX_ROUNDS, Tools, chat_body
from tests.conftest import PATIENCE


class Unit(enum.Enum):
    CELSIUS = "C"
    KELVIN = "K"


@dataclasses.dataclass
class Place:
    city: str
    country: str = "it"


def get_weather(
    city: Literal["Rom", "Oslo"], days: Annotated[int, msgspec.Meta(ge=1, le=9)] = 1, unit: Unit = Unit.CELSIUS
) -> dict[str, Any]:
    """The weather of a city."""
    return {"city": city, "days": days, "unit": unit.value}


def locate(place: Place, tags: list[str] = []) -> str:  # noqa: B006
    return f"{type(place).__name__} {place.city}, {place.country}, {tags}"


class Station:
    def weather(self, city: str) -> str:
        return city


class OldDict(TypedDict):
    x: int


async def later(x: int) -> int:
    await asyncio.sleep(0)
    return x + 1


def asked(*calls: tuple[str, str]) -> Result:
    return Result(tool_calls=[{"id": str(i), "name": name, "arguments": text} for i, (name, text) in enumerate(calls)])


def test_functions_are_described_by_their_signatures() -> None:
    first, second = (tool["function"] for tool in Tools([get_weather, locate]).json)
    assert (first["name"], first["description"]) == ("get_weather", "The weather of a city.")
    assert first["parameters"]["required"] == ["city"]
    assert sorted(first["parameters"]["properties"]) == ["city", "days", "unit"]
    assert first["parameters"]["properties"]["city"] == {"enum": ["Oslo", "Rom"]}
    assert list(first["parameters"]["$defs"]) == ["Unit"]
    assert list(second["parameters"]["$defs"]) == ["Place"]
    assert "description" not in second
    assert second["parameters"]["required"] == ["place"]


def test_what_cannot_be_a_tool_is_refused() -> None:
    def many(*values: int) -> None: ...

    def odd(value: "Missing") -> None: ...  # noqa: F821

    def custom(value: Tools) -> None: ...

    def unlike(value: float = float("nan")) -> None: ...

    def mixed(old: OldDict, town: Town) -> None: ...

    described = [(many, "values cannot be told"), (odd, "odd cannot be described"), (custom, "custom cannot be")]
    described += [(unlike, "unlike cannot be described: the schema of its parameters cannot be sent as JSON")]
    described += [(Station.weather, "weather is a method of a class: give it of an object")]
    if sys.version_info < (3, 12):
        described += [(mixed, r"mixed cannot be described: Please use `typing_extensions\.TypedDict`")]
    for tool, words in (*described, (5, "a tool is a function"), ("f", "a tool is a function")):
        for given in (tool, [tool]):
            with pytest.raises(InvalidRequest, match=words):
                Tools(given)
    with pytest.raises(InvalidRequest, match="two tools are called weather: rename one"):
        Tools([Station().weather, functools.partial(Station().weather)])
    with pytest.raises(InvalidRequest, match="a lambda has no name that a model could call it by"):
        chat_body([lambda city: "rain"])
    assert Tools(None).json == Tools([]).json == []


def test_functions_get_values_of_their_types_and_return_text() -> None:
    tools = Tools([get_weather, locate])
    calls = [
        ("get_weather", '{"city": "Oslo", "days": 3, "unit": "K"}'),
        ("locate", '{"place": {"city": "Rom"}}'),
        ("locate", '{"place": "Rom"}'),
        ("get_weather", "{"),
    ]
    weather, place, wrong, broken = (message["content"] for message in tools.results(asked(*calls)))
    assert json.loads(weather) == {"city": "Oslo", "days": 3, "unit": "K"}
    assert place == "Place Rom, it, []"
    assert wrong.startswith("ValidationError: Expected `object`")
    assert broken.startswith("DecodeError")
    assert Tools(Station().weather).results(asked(("weather", '{"city": "Rom"}')))[0]["content"] == "Rom"
    assert Tools(later).results(asked(("later", '{"x": "3"}')))[0]["content"] == "4"
    assert tools.results(asked(("other", "{}"))) == tools.results(Result()) == []


def test_what_is_bound_is_not_told() -> None:
    def search(words: str, connection: Tools, most: int = 3) -> str:
        """Search the records."""
        return f"{words} {connection is open_one} {most}"

    open_one = Tools()
    tools = Tools(functools.partial(search, connection=open_one))
    (told,) = (tool["function"] for tool in tools.json)
    assert (told["name"], told["description"]) == ("search", "Search the records.")
    assert list(told["parameters"]["properties"]) == ["words", "most"]
    assert tools.results(asked(("search", '{"words": "a"}')))[0]["content"] == "a True 3"
    at_rome = functools.partial(locate, Place("Rom"))
    (told,) = (tool["function"] for tool in Tools(at_rome).json)
    assert list(told["parameters"]["properties"]) == ["tags"]
    functools.update_wrapper(at_rome, locate)
    at_rome.__name__, at_rome.__doc__ = "rome", "What is in Rome."
    first, told = (tool["function"] for tool in Tools([functools.partial(locate, Place("Oslo")), at_rome]).json)
    assert (first["name"], told["name"], told["description"]) == ("locate", "rome", "What is in Rome.")
    assert list(told["parameters"]["properties"]) == ["tags"]


class Forecast:
    """The weather to come."""

    async def __call__(self, days: int) -> int:
        return days + 1


def test_an_object_that_can_be_called_is_a_tool() -> None:
    tools = Tools(Forecast())
    (told,) = (tool["function"] for tool in tools.json)
    assert (told["name"], told["description"]) == ("Forecast", "The weather to come.")
    assert told["parameters"]["properties"] == {"days": {"type": "integer"}}
    calls = [{"id": "1", "name": "Forecast", "arguments": '{"days": 2}'}]
    assert tools.asynchronous(calls)
    assert tools.call(calls)[0]["content"] == "3"


def test_what_is_said_of_a_parameter_is_told() -> None:
    def forecast(
        city: Annotated[str, "the city's name"],
        days: Annotated[int, pydantic.Field(ge=1, description="how many")] = 1,
        hour: Annotated[int, annotated_types.Lt(24)] = 0,
    ) -> int:
        return days

    def plain(city: Annotated[str, "the city's name", "in Italian"]) -> None: ...

    tools = Tools([forecast, plain])
    first, second = (tool["function"]["parameters"]["properties"] for tool in tools.json)
    assert second["city"] == {"type": "string", "description": "the city's name in Italian"}
    assert first["city"]["description"] == "the city's name"
    assert (first["days"]["description"], first["days"]["minimum"]) == ("how many", 1)
    assert first["hour"]["exclusiveMaximum"] == 24
    right, wrong = tools.results(
        asked(("forecast", '{"city": "a", "days": "2"}'), ("forecast", '{"city": "a", "days": 0}'))
    )
    assert right["content"] == "2"
    assert "greater than or equal to 1" in wrong["content"]


def test_a_default_is_the_same_in_every_call() -> None:
    def collect(x: int, seen: list[int] = []) -> list[int]:  # noqa: B006
        seen.append(x)
        return seen

    calls = Tools(collect).results(asked(("collect", '{"x": 1}'), ("collect", '{"x": 2}')))
    assert [message["content"] for message in calls] == ["[1]", "[2]"]


def test_what_cannot_be_told_is_told_as_what_went_wrong() -> None:
    def endless() -> list[Any]:
        found: list[Any] = []
        found.append(found)
        return found

    (message,) = Tools(endless).results(asked(("endless", "{}")))
    assert message["content"].startswith("RecursionError")


class Town(pydantic.BaseModel):
    name: str
    inhabitants: int = 1


def compare_towns(first: Town, others: list[Town], best: Town = Town(name="Bonn")) -> Town:  # noqa: B008
    return max(first, *others, best, key=lambda town: town.inhabitants)


def test_an_interrupt_ends_a_coroutine_that_is_waited_for() -> None:
    begun, ended = threading.Event(), threading.Event()

    async def endless() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    def interrupt() -> None:
        begun.wait()
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    threading.Thread(target=interrupt).start()
    with pytest.raises(KeyboardInterrupt):
        Tools(endless).call([{"id": "1", "name": "endless", "arguments": "{}"}])
    assert ended.wait(PATIENCE)


def test_models_of_pydantic_are_described_and_read() -> None:
    tools = Tools(compare_towns)
    parameters = tools.json[0]["function"]["parameters"]
    assert parameters["required"] == ["first", "others"]
    assert parameters["$defs"]["Town"]["required"] == ["name"]
    good = '{"first": {"name": "Rom"}, "others": [{"name": "Oslo", "inhabitants": "5"}]}'
    right, wrong = (
        message["content"] for message in tools.results(asked(("compare_towns", good), ("compare_towns", "{}")))
    )
    assert json.loads(right) == {"name": "Oslo", "inhabitants": 5}
    assert wrong.startswith("ValidationError: 2 validation errors for Arguments\nfirst")


def test_what_no_type_describes_is_refused_in_words_of_tools() -> None:
    def custom(value: Tools) -> None: ...

    with pytest.raises(InvalidRequest) as refused:
        Tools(custom)
    assert str(refused.value) == f"the tool custom cannot be described: type {Tools!r} is not supported"


def test_calls_of_the_last_answer_are_left_to_whoever_asked() -> None:
    told: list[dict[str, Any]] = []

    def answer() -> TextStream:
        return TextStream(iter(()), asked(("later", '{"x": 1}')))

    def ask(before: Result, results: list[dict[str, Any]]) -> TextStream:
        told.extend(results)
        return answer()

    assert len(list(Tools(later).rounds(answer(), ask))) == MAX_ROUNDS
    assert len(told) == MAX_ROUNDS - 1
