"""https://python.useinstructor.com"""

from __future__ import annotations

from typing import Any, Literal

import instructor
from checks import BASE_URL, KEY, MESSAGES, MODEL, check, main
from openai import OpenAI
from pydantic import BaseModel


class Anything(BaseModel, extra="allow"):
    """Any object."""


class Weather(BaseModel, extra="forbid"):
    """The weather of a city; with further fields, weights that say nothing would never come to its end."""

    city: Literal["Rome", "Oslo"]
    days: Literal[1, 2]


def create(mode: instructor.Mode, response_model: Any = Weather, **fields: Any) -> Any:
    client = instructor.from_openai(OpenAI(base_url=BASE_URL, api_key=KEY, max_retries=0), mode=mode)
    fields = {"max_tokens": 300, "max_retries": 0, **fields}
    return client.chat.completions.create(model=MODEL, messages=MESSAGES, response_model=response_model, **fields)


@check("structured output by tools")
def _() -> None:
    assert isinstance(create(instructor.Mode.TOOLS), Weather)


@check("json object", "text")
def _() -> str:
    # The penalty ends what a small model would repeat without one.
    return str(create(instructor.Mode.JSON, Anything, max_tokens=500, temperature=0, frequency_penalty=1))


@check("json schema")
def _() -> None:
    assert isinstance(create(instructor.Mode.JSON_SCHEMA), Weather)


@check("tools streamed")
def _() -> None:
    *_, last = create(instructor.Mode.TOOLS, instructor.Partial[Weather], stream=True)
    assert last.city and last.days


if __name__ == "__main__":
    main()
