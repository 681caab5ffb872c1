"""The subject of `omni verify`: an engine in this process or a server, as the checks see it."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Self

from omni_cli.measure.verify.noise import Noise
from omni_cli.measure.verify.reference import Reference
from omni_cli.measure.verify.run_comparison import Answer, compare_runs
from omni_cli.measure.verify.verdicts import Decode, replace_values
from omni_cli.models.scores import EngineOutput
from omni_cli.records.verify_record import Check, Row
from omni_cli.requests.outputs import GenerateRequest

_NO_TIES = "the server gives no log-probabilities, so a near tie cannot be told"


class Subject(ABC):
    """Answers requests between `__aenter__` and `__aexit__`, and may be entered again.

    `checks` are those that apply to it, in the order of their rows; `unchecked` has the reasons of those that cannot
    be made. `stage` is the first stage, whose answers have texts, and `last` the one that makes media; `sampling_stage`
    and `denoising_stage` depend on seeds. `media` are the fields of requests that it takes, which with `can_omit_media`
    may be left out. `caches_prompts`: equal beginnings of prompts may share work. `media_bound` is the difference of
    samples or pixels that batching may make; with `may_ignore_seeds`, media need not depend on seeds. `count_names` are
    its words for the counts of output and input tokens. `noise` is the reference's, once it has run. `notes` are
    sentences on what the stages changed about requests so far.
    """

    checks: tuple[Check, ...]
    unchecked: Mapping[Check, str] = {}
    stage: str
    last: str
    sampling_stage: str | None = None
    denoising_stage: str | None = None
    media: tuple[str, ...]
    can_omit_media = False
    caches_prompts = False
    may_ignore_seeds = False
    media_bound = 0.0
    count_names: tuple[str, str]
    decode: Decode
    noise: Noise | None = None
    reference: Reference | None = None
    notes: Mapping[str, None] = {}

    @abstractmethod
    async def __aenter__(self) -> Self: ...

    @abstractmethod
    async def __aexit__(self, *_: object) -> None: ...

    @abstractmethod
    async def prepare(
        self, requests: Sequence[GenerateRequest], *, are_defaults: bool
    ) -> tuple[tuple[GenerateRequest, ...], list[Row]]:
        """Return the requests that it takes, and rows of what it shows before answers are compared.

        With `are_defaults`, requests with media that it does not take are left out.
        """

    @abstractmethod
    async def ask(self, request: GenerateRequest) -> Answer:
        """Send a request and wait for its whole answer."""

    async def ask_at_once(self, requests: Sequence[GenerateRequest]) -> list[Answer]:
        """Send requests concurrently, in this order."""
        return list(await asyncio.gather(*map(self.ask, requests)))

    @abstractmethod
    async def stream_rows(self, alone: Sequence[Answer]) -> list[Row]:
        """Ask again for these answers as streams, and judge them."""

    @abstractmethod
    def to_reference(self, alone: Sequence[Answer]) -> tuple[list[EngineOutput], list[Row]]:
        """Return the outputs that the reference can judge, and rows of the others."""

    async def choice_rows(self, request: GenerateRequest) -> list[Row]:
        """Return a row on the number of choices, if a request can have several."""
        return []

    async def mode_rows(self, alone: Sequence[Answer]) -> AsyncGenerator[list[Row], None]:
        """Yield rows of variants of the subject, which is closed, against these answers, as soon as one is done."""
        return
        yield []

    def only_text(self, request: GenerateRequest) -> GenerateRequest:
        """Return the request without what is made after its text."""
        return request

    def compare(
        self,
        check: Check,
        first: Sequence[Answer],
        second: Sequence[Answer],
        *,
        mode: str | None = None,
        media_bound: float | None = None,
    ) -> list[Row]:
        """Return a row per stage for answers against others to the same requests. Raises the error of either."""
        expected, outputs = ([answer.output for answer in answers] for answers in (first, second))
        stages = [*expected[0].tokens]
        if self.last not in stages and any(output.arrays for output in expected):
            stages.append(self.last)
        bound = self.media_bound if media_bound is None else media_bound
        rows = compare_runs(check, stages, expected, outputs, self.noise, self.decode, mode=mode, media_bound=bound)
        if second[0].has_logprobs:
            return rows
        return [
            replace_values(row, why=_NO_TIES, got=None, expected=None, position=None)
            if row.verdict == "different" and row.why is None
            else row
            for row in rows
        ]
