"""Requests through an engine, and what it made of them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace

import numpy as np

from omni_cli.bench.outputs import output_arrays
from omni_cli.config.schema import EngineConfig
from omni_cli.engine.omni_llm import OmniLLM
from omni_cli.models.scores import EngineOutput, EngineTokens
from omni_cli.outputs import (
    AudioChunk,
    AudioOutput,
    GenerateRequest,
    OutputReady,
    RequestResult,
    StageInfo,
    StageTrace,
    TextDelta,
    TextOutput,
)


@dataclass(frozen=True)
class EngineRun:
    """One request's result, and what arrived before it: text deltas and audio chunks, joined."""

    request: GenerateRequest
    result: RequestResult
    streamed_text: str
    streamed_audio: np.ndarray | None

    @property
    def output(self) -> EngineOutput:
        """The tokens and media. Raises the request's error."""
        if self.result.error is not None:
            raise self.result.error
        arrays = output_arrays([self.result])
        rates = {
            f"0.audio.{number}": output.sample_rate
            for number, output in enumerate(self.result.outputs)
            if isinstance(output, AudioOutput)
        }
        traces = [trace for trace in self.result.stages if trace.output_token_ids is not None]
        return EngineOutput(
            self.request,
            {trace.name: get_tokens(trace) for trace in traces},
            {name: array for name, array in arrays.items() if ".tokens." not in name},
            rates,
            self.result.stages[0].num_input_tokens if self.result.stages else None,
        )

    @property
    def text(self) -> TextOutput | None:
        return next((output for output in self.result.outputs if isinstance(output, TextOutput)), None)

    @property
    def audio(self) -> AudioOutput | None:
        return next((output for output in self.result.outputs if isinstance(output, AudioOutput)), None)


def get_tokens(trace: StageTrace) -> EngineTokens:
    """Return the tokens of a stage with their candidates, as rows of equal length."""
    token_ids, noted = trace.output_token_ids or (), trace.output_logprobs or ()
    width = max((len(row) for row in noted), default=1)
    candidates = np.full((len(token_ids), width), -1, np.int64)
    logprobs = np.full((len(token_ids), width), np.nan, np.float64)
    candidates[:, 0] = token_ids
    for position, row in enumerate(noted):
        for column, (token_id, logprob, _text) in enumerate(row):
            candidates[position, column], logprobs[position, column] = token_id, logprob
    codes = None if trace.output_codes is None else tuple(map(tuple, trace.output_codes))
    return EngineTokens(tuple(token_ids), candidates, logprobs, codes)


class EngineSession:
    """An engine that runs requests under names of their own; an asynchronous context manager."""

    def __init__(self, config: EngineConfig, *, verbose: bool, on_event: Callable[[object], None]) -> None:
        self.config = config
        self._engine = OmniLLM(config, verbose=verbose)
        self._on_event = on_event
        self._num_runs = 0

    async def __aenter__(self) -> EngineSession:
        await self._engine.start(self._on_event)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._engine.close()

    @property
    def checkpoint(self) -> str:
        return str(self._engine.checkpoint)

    @property
    def stages(self) -> tuple[StageInfo, ...]:
        return self._engine.stages

    async def alone(self, requests: Sequence[GenerateRequest]) -> list[EngineRun]:
        """Run requests one after another."""
        return [await self._run(request) for request in requests]

    async def at_once(self, requests: Sequence[GenerateRequest]) -> list[EngineRun]:
        """Run requests concurrently, in this order."""
        return list(await asyncio.gather(*map(self._run, requests)))

    async def _run(self, request: GenerateRequest) -> EngineRun:
        self._num_runs += 1
        named = replace(request, request_id=f"{request.request_id} #{self._num_runs}")
        text: list[str] = []
        chunks: list[np.ndarray] = []
        result: RequestResult | None = None
        async with aclosing(self._engine.generate(named)) as events:
            async for event in events:
                match event:
                    case TextDelta():
                        text.append(event.text)
                    case AudioChunk():
                        chunks.append(event.samples)
                    case RequestResult():
                        result = event
                    case OutputReady():
                        pass
        assert result is not None
        return EngineRun(request, result, "".join(text), np.concatenate(chunks) if chunks else None)
