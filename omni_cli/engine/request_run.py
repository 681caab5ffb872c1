"""One request on its way through the chain: stage by stage, or streaming into a stage while the previous one runs."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections.abc import AsyncGenerator, Callable, Collection, Iterator, Sequence

import msgspec
import numpy as np

from omni_cli.core.errors import StageError
from omni_cli.engine.process.stage_client import StageClient
from omni_cli.requests.contents import StageIO
from omni_cli.requests.events import AudioChunk, Event, TextDelta
from omni_cli.requests.outputs import (
    AudioOutput,
    GenerateRequest,
    ImageOutput,
    Modality,
    Output,
    OutputReady,
    StageProgress,
    StageTrace,
    TensorOutput,
    audio_seconds,
)
from omni_cli.stage.messages import (
    AbortRequest,
    AddRequest,
    AppendInput,
    Failure,
    Progress,
    Report,
    RequestDone,
    StageOutputChunk,
)


class RequestRun:
    """Sends a request to the stages of `chain` and turns their reports, which arrive in `queue`, into events.

    With `streams`, each stage starts once its input stage has something for it; without, those named in `early` do.
    `enter(name)` returns a running stage or raises `StageError`; `trace` makes a stage's trace of its last report.
    """

    def __init__(
        self,
        request: GenerateRequest,
        chain: Sequence[str],
        enter: Callable[[str], StageClient],
        trace: Callable[[StageClient, RequestDone], StageTrace],
        *,
        streams: bool,
        early: Collection[str],
    ) -> None:
        self.queue: asyncio.Queue[tuple[str, Report]] = asyncio.Queue()
        self.stage_output: bytes | None = None
        self.audio_arrivals: list[tuple[float, int]] = []
        self.notes: tuple[str, ...] = request.notes
        self._request = request
        self._chain = list(chain)
        self._enter = enter
        self._trace = trace
        self._streams = streams
        self._early = early
        self._began_s = asyncio.get_running_loop().time()
        # The stages that the request is in, and the final reports of those that it has left.
        self._inside: dict[str, StageClient] = {}
        self._entered_s: dict[str, float] = {}
        self._traces: dict[str, StageTrace] = {}
        self._outputs: dict[str, list[Output]] = {}
        self._unshown = list(chain)  # stages whose outputs are not events yet
        self._chunks: dict[str, list[AudioChunk]] = {}
        # Stages that have sent their last part, and final reports of the next ones that came before theirs.
        self._ending: set[str] = set()
        self._held: list[tuple[str, RequestDone | Failure]] = []
        # The stage whose text the caller waits for; a stream fails at once before it has any.
        self._writing = {*self._chain[:1]} if self._wants("text") and not streams else set()

    @property
    def outputs(self) -> tuple[Output, ...]:
        """Complete outputs so far, in the order of the stages."""
        return tuple(output for name in self._chain for output in self._outputs.get(name, ()))

    @property
    def traces(self) -> tuple[StageTrace, ...]:
        """Traces of the stages that have finished it, in their order."""
        return tuple(self._traces[name] for name in self._chain if name in self._traces)

    @property
    def rtf(self) -> float | None:
        """Seconds since the request arrived, per second of its audio; None without audio."""
        audio_s = audio_seconds(self.outputs)
        return self._elapsed_s() / audio_s if audio_s else None

    async def events(self) -> AsyncGenerator[Event, None]:
        """Yield events; raises the error of the request or of its stage. All stages drop the request at the end."""
        try:
            self._send_on(0, self._request.stage.input, is_last=True)
            while len(self._traces) < len(self._chain):
                name, report = await self.queue.get()
                if name in self._inside:
                    for event in self._get_events(name, report):
                        yield event
        finally:
            for client in self._inside.values():
                with contextlib.suppress(StageError):
                    client.send(AbortRequest(self._request.request_id))

    def _get_events(self, name: str, report: Report) -> Iterator[Event]:
        match report:
            case Failure() if self._writing & self._inside.keys() - {name}:
                self._held.append((name, report))  # it comes after the text
            case Failure():
                del self._inside[name]
                raise report.error(name)
            case Progress():
                yield StageProgress(stage=name, **msgspec.structs.asdict(report))
            case TextDelta() if self._wants("text"):
                self._writing.add(name)
                yield report
            case StageOutputChunk():
                if report.is_last:
                    self._ending.add(name)
                self._send_on(self._chain.index(name) + 1, report.stage_output, is_last=report.is_last)
            case AudioChunk():
                self._chunks.setdefault(name, []).append(report)
                if self._streams_to_caller:
                    self._note_audio(sum(len(chunk.samples) for chunk in self._chunks[name]))
                    yield report
            case RequestDone() if self._previous(name) in self._ending & self._inside.keys():
                self._held.append((name, report))  # its sound has the reason of that end
            case RequestDone():
                yield from self._finish_stage(name, report)
                held, self._held = self._held, []
                for each in held:
                    yield from self._get_events(*each)

    def _previous(self, name: str) -> str | None:
        return [None, *self._chain][self._chain.index(name)]

    def _finish_stage(self, name: str, report: RequestDone) -> Iterator[Event]:
        client = self._inside.pop(name)
        self._traces[name] = dataclasses.replace(self._trace(client, report), began_s=self._entered_s[name])
        if report.trace.get("num_output_tokens") is not None:
            done, num_input = report.trace["num_output_tokens"], report.trace.get("num_input_tokens") or 0
            yield StageProgress(self._request.request_id, name, done, done, "token", num_input)
        self._outputs[name] = self._collect_outputs(report, self._chunks.pop(name, []))
        self.notes += report.notes
        self._note_audio(sum(len(output.samples) for output in self.outputs if isinstance(output, AudioOutput)))
        while self._unshown and self._unshown[0] in self._outputs:  # in this order, whichever ends first
            for output in self._outputs[self._unshown.pop(0)]:
                yield OutputReady(self._request.request_id, output)
        if name == self._chain[-1]:
            self.stage_output = report.stage_output
        elif report.stage_output is not None:
            self._send_on(self._chain.index(name) + 1, report.stage_output, is_last=True)

    def _send_on(self, position: int, stage_output: bytes | None, *, is_last: bool) -> None:
        """Send input to the stage at `position`: a new request, or more input if it is there already."""
        name = self._chain[position]
        if name in self._inside and stage_output is not None:
            # If the stage has just ended, the reason is already in the queue, after the previous stage's reports.
            with contextlib.suppress(StageError):
                self._inside[name].send(AppendInput(self._request.request_id, stage_output, is_last))
        elif name not in self._traces:  # a finished stage needs no more input
            client = self._enter(name)
            self._inside[name], self._entered_s[name] = client, self._elapsed_s()
            client.send(AddRequest(self._for_stage(position, stage_output, more_follows=not is_last)))

    def _for_stage(self, position: int, stage_output: bytes | None, *, more_follows: bool) -> GenerateRequest:
        request = self._request
        if stage_output is not None:  # made of the prompt and the media by the stages before
            request = GenerateRequest(
                request.request_id,
                seed=request.seed,
                speech=dataclasses.replace(request.speech, voices=()),
                diffusion=request.diffusion,
            )
        asked = self._request.stage
        return dataclasses.replace(
            request,
            stage=StageIO(
                input=stage_output,
                more_follows=more_follows,
                wants_output=position + 1 < len(self._chain) or asked.wants_output,
                wants_frames=asked.wants_frames,
            ),
            speech=dataclasses.replace(request.speech, stream_audio=self._sends_parts(position)),
        )

    def _sends_parts(self, position: int) -> bool:
        if position + 1 == len(self._chain):
            return self._streams_to_caller
        return self._streams or self._chain[position + 1] in self._early

    @property
    def _streams_to_caller(self) -> bool:
        """True if the caller gets audio while it is made; a stage output goes to the caller in one piece."""
        return self._streams and not self._request.stage.wants_output

    def _collect_outputs(self, report: RequestDone, chunks: list[AudioChunk]) -> list[Output]:
        outputs: list[Output] = []
        if report.text is not None and self._wants("text"):
            outputs.append(report.text)
        sounds = [] if report.audio is None else [report.audio, *report.more_audio]
        if chunks:
            samples = np.concatenate([chunk.samples for chunk in chunks])
            sounds.append(AudioOutput(samples, chunks[0].sample_rate))
        reasons = [trace.finish_reason for trace in self.traces if trace.finish_reason is not None]
        outputs += [dataclasses.replace(sound, finish_reason=(reasons or ["stop"])[-1]) for sound in sounds]
        outputs += [ImageOutput(image) for image in report.images]
        outputs += report.videos
        outputs += [TensorOutput(name, array) for name, array in report.tensors.items()]
        return outputs

    def _wants(self, modality: Modality) -> bool:
        return self._request.modalities is None or modality in self._request.modalities

    def _note_audio(self, num_samples: int) -> None:
        """Note that so many samples are there, if they are more than before."""
        if num_samples > (self.audio_arrivals or [(0.0, 0)])[-1][1]:
            self.audio_arrivals.append((self._elapsed_s(), num_samples))

    def _elapsed_s(self) -> float:
        return asyncio.get_running_loop().time() - self._began_s
