"""Shared by the routes: the engine with its checks and deadlines, the limits, the metrics."""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import secrets
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Literal, TypeVar

from omni_cli.config.bounds import MAX_SEED, NUM_RANDOM_SEEDS
from omni_cli.config.loader import load_bundled
from omni_cli.config.schema import EngineConfig
from omni_cli.core.errors import DeadlineError, OmniError, StageError
from omni_cli.engine.describing import get_capabilities
from omni_cli.models.voices import openai_voices
from omni_cli.requests.capabilities import Capabilities
from omni_cli.requests.events import Event
from omni_cli.requests.media.reading import media_pool
from omni_cli.requests.outputs import GenerateRequest, Modality, RequestResult, StageProgress, TextOutput, audio_seconds
from omni_cli.requests.sampling import SamplingValues, is_by_default, names_drawing
from omni_cli.serve.conversation import ChatReply, Transcripts
from omni_cli.serve.errors import APIError, refuse, shutting_down, unavailable
from omni_cli.serve.exchange import AccessLog, Exchange
from omni_cli.serve.limits import Limits, ServerSettings
from omni_cli.serve.media import MediaDecoder, decode_media
from omni_cli.serve.metrics import Metrics, get_progress
from omni_cli.serve.schemas.completions import SampledText, constraint
from omni_cli.serve.supervisor import Supervisor
from omni_cli.serve.voice_store import VoiceStore

T = TypeVar("T")
# Of vLLM's modes; its third one, `keep`, freezes requests, which a chain of stages cannot continue.
SleepMode = Literal["abort", "wait"]


def seeded_copies(request: GenerateRequest, n: int) -> list[GenerateRequest]:
    """Return the requests of `n` answers: the first has the seed of `request`, each following one the next seed."""
    if n == 1:
        return [request]
    return [
        dataclasses.replace(
            request,
            request_id=f"{request.request_id}-{number}",
            seed=request.seed + number - (MAX_SEED + 1 if request.seed + number > MAX_SEED else 0),
        )
        for number in range(n)
    ]


@dataclass
class Service:
    """`config` is the served profile; a draining server finishes the requests that it has begun.

    `voices` are the saved ones; None if the server keeps none.
    """

    config: EngineConfig
    supervisor: Supervisor
    settings: ServerSettings
    metrics: Metrics
    log: AccessLog
    voices: VoiceStore | None = None
    is_draining: bool = False
    transcripts: Transcripts = field(default_factory=Transcripts)
    _waits: set[asyncio.Timeout] = field(default_factory=set)
    _aborts: bool = False

    @property
    def limits(self) -> Limits:
        return self.settings.limits

    @property
    def is_ready(self) -> bool:
        """True if a request arriving now would be run."""
        return self.supervisor.state == "ready" and not self.is_draining

    @functools.cached_property
    def _media_threads(self) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(self.limits.max_requests, "omni-media")

    @functools.cached_property
    def capabilities(self) -> Capabilities:
        return get_capabilities(self.config)

    @property
    def modalities(self) -> tuple[Modality, ...]:
        return self.capabilities.modalities

    def check_model(self, name: str | None) -> None:
        """Accept names of the model, and of its LoRA adapters; raise `APIError` (404) for others."""
        known = (None, self.config.name, self.config.model, *self.settings.served_model_names, *self.config.adapters)
        if name not in known and "*" not in self.settings.served_model_names:
            message = f"the model `{name}` is not served here; `{self.config.name}` is"
            raise APIError(404, message, code="model_not_found", param="model")

    def check(self, model: str | None, makes: Modality, num_chars: int) -> None:
        """Raise `APIError` for a model or an output that is not served, and for a prompt that is too long."""
        self.check_model(model)
        self.check_makes(makes)
        self.check_prompt_length(num_chars)

    def adapter(self, model: str | None) -> str:
        """Return the LoRA adapter that a request names as its model, "" for the base model."""
        return model if model in self.config.adapters else ""

    def choose_seed(self, wanted: int | None, exchange: Exchange) -> int:
        """Return the seed of a request, else the server's, else a random one; the response and the log name it."""
        seed = self.settings.seed if wanted is None else wanted
        seed = secrets.randbelow(NUM_RANDOM_SEEDS) if seed is None else seed
        exchange.note_seed(seed)
        return seed

    def check_makes(self, modality: Modality) -> None:
        """Raise `APIError` (404) for an endpoint that this profile has no stage for."""
        if modality == "text" and self.capabilities.transcribes:
            raise self.make_refusal("transcribes speech and does not chat: use /v1/audio/transcriptions")
        if modality in self.modalities:
            return
        others = [name for name, other in load_bundled().items() if modality in Capabilities.of(other).modalities]
        made = " and ".join(self.modalities)
        raise self.make_refusal(f"makes {made}, not {modality}; profiles that do: {', '.join(others)}")

    def make_refusal(self, reason: str) -> APIError:
        """Return the error of an endpoint that is not for this profile."""
        return APIError(404, f"profile `{self.config.name}` {reason}", code="unsupported_endpoint")

    @property
    def default_sampling(self) -> SamplingValues:
        """The sampling of a request for text that names none."""
        return next((stage.default_sampling for stage in self.supervisor.stages[:1]), {})

    def choices(self, request: GenerateRequest, n: int) -> list[GenerateRequest]:
        """Return the requests of `n` answers; where a single one would be greedy by default, several are drawn."""
        if n > 1 and is_by_default(self.default_sampling) and not names_drawing(request.sampling):
            request = dataclasses.replace(request, sampling={**request.sampling, "temperature": 1.0})
        return seeded_copies(request, n)

    @property
    def speakers(self) -> list[str]:
        """The names of the loaded model's own speakers."""
        return [voice for stage in self.supervisor.stages for voice in stage.voices]

    def has_speaker(self, name: str) -> bool:
        """True if a name is that of one of the model's speakers, or chooses one."""
        speakers = self.speakers
        own = (speaker.lower() for speaker in (*speakers, *openai_voices(speakers), "default"))
        return name.lower() in own

    def check_sampled(self, body: SampledText) -> None:
        """Raise `APIError` for a request for text that this profile does not make, or whose fields do not agree."""
        self.check_model(body.model)
        self.check_makes("text")
        self.check_count(body.n or 1, "n")
        bound = body.structured_outputs
        two = "`response_format` and `structured_outputs` both bind the text: send one of them"
        one_of = "`structured_outputs` needs one of `json`, `json_object`, `regex`, `choice` and `grammar`"
        refuse(
            ("structured_outputs", bound is not None and constraint(body.response_format), two),
            ("structured_outputs", bound is not None and len(constraint(bound)) != 1, one_of),
            ("stream_options", body.stream_options and not body.stream, "`stream_options` needs `stream: true`"),
        )

    def check_given(self, given: Set[str], names: Mapping[str, str]) -> None:
        """Raise `APIError` (400) if a request has what the model does not take, or lacks files that it needs.

        `given` are media and arguments; `names` maps them to the names of the request's fields, where these differ.
        """
        for name in (name for name in sorted(given) if not self.capabilities.takes(name)):
            field = names.get(name, name)
            raise APIError(400, f"this model takes no `{field}`", code="unsupported_input", param=field)
        for name in self.capabilities.needed_files:
            if name not in given:
                field = names.get(name, name)
                message = f"field `{field}` is missing, which this model needs"
                raise APIError(400, message, code="missing_input", param=field)

    def check_ready(self) -> None:
        """Raise `APIError` (503) for work that nobody waits for, while it could not be run."""
        if not self.is_ready:
            self.supervisor.check_ready()
            raise unavailable(f"the engine is {self.supervisor.state}")

    def check_prompt_length(self, num_chars: int) -> None:
        """Check cheaply before the tokenizer's exact check."""
        if num_chars > self.limits.max_prompt_chars:
            raise APIError(
                400,
                f"the prompt has {num_chars} characters; the maximum is {self.limits.max_prompt_chars}",
                code="prompt_too_long",
            )

    def check_count(self, count: int, param: str) -> None:
        """Raise `APIError` (400) for more answers to one exchange than the server runs requests at once."""
        limit = self.limits.max_requests
        refuse((param, count > limit, f"`{param}` asks for {count} answers; the maximum is {limit}"))

    async def decode(self, build: Callable[[MediaDecoder], T]) -> T:
        """Call `build` in a thread of the server's media, which other work does not share."""
        try:
            return await decode_media(build, self.limits, self._media_threads, self.settings.media_prefixes)
        except (APIError, OmniError):
            if self.is_draining:
                raise shutting_down() from None
            raise

    def drain(self) -> None:
        """Refuse new requests from now on, and those whose media are still being decoded."""
        self.is_draining = True
        media_pool().end_all()

    async def sleep(self, level: int, mode: SleepMode) -> None:
        """Put the engine to sleep after the requests in flight have ended; `abort` ends them with 503."""
        self.supervisor.begin_sleep(level)
        self._aborts = mode == "abort"
        for wait in self._waits if self._aborts else ():
            if not wait.expired():
                wait.reschedule(asyncio.get_running_loop().time())
        await self.supervisor.sleep()

    async def events(self, request: GenerateRequest, exchange: Exchange) -> AsyncGenerator[Event, None]:
        """Run a request on the engine. The last event is a `RequestResult` without error.

        Raises `OmniError` with its failure, `DeadlineError` after its time limit, `APIError` if there is no engine.
        Leaving early aborts the request; what its stages have done is counted.
        """
        progress: dict[str, StageProgress] = {}
        try:
            async with aclosing(self.supervisor.generate(request)) as events:
                while True:
                    event = await self._next(events, exchange)
                    told = get_progress(event, self.config.stages[0].name)
                    progress |= {} if told is None else {told.stage: told}
                    if isinstance(event, RequestResult):
                        for trace in event.stages:
                            progress.pop(trace.name, None)
                        self._log_end(event, exchange)
                        if event.error is not None:
                            raise event.error
                        yield event
                        return
                    yield event
        finally:
            for unfinished in progress.values():
                self.metrics.on_unfinished(unfinished)
            self._count_tokens(sum(each.done for each in progress.values() if each.unit == "token"), exchange)

    async def result(self, request: GenerateRequest, exchange: Exchange) -> RequestResult:
        """Return the last of `events`, for an answer that is sent as a whole."""
        (result,) = await self.results([request], exchange)
        return result

    async def events_of_all(
        self, requests: Sequence[GenerateRequest], exchange: Exchange
    ) -> AsyncGenerator[tuple[int, Event], None]:
        """Run requests concurrently, so that the engine can batch them; yield the `events` of each with its index.

        The first failure is raised and aborts the others. Leaving early aborts all.
        """
        queue: asyncio.Queue[tuple[int, Event] | None] = asyncio.Queue()

        async def run(index: int, request: GenerateRequest) -> None:
            async with aclosing(self.events(request, exchange)) as events:
                async for event in events:
                    queue.put_nowait((index, event))

        async def run_all() -> None:
            try:
                async with asyncio.TaskGroup() as group:
                    for index, request in enumerate(requests):
                        group.create_task(run(index, request))
            except ExceptionGroup as failures:
                raise failures.exceptions[0] from None
            finally:
                queue.put_nowait(None)

        running = asyncio.create_task(run_all())
        try:
            while (item := await queue.get()) is not None:
                yield item
            await running
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)

    async def results(self, requests: Sequence[GenerateRequest], exchange: Exchange) -> list[RequestResult]:
        """Return the last of `events_of_all` of each request, for an answer that is sent as a whole."""
        results: dict[int, RequestResult] = {}
        async with aclosing(self.events_of_all(requests, exchange)) as events:
            async for index, event in events:
                if isinstance(event, RequestResult):
                    results[index] = event
        return [results[index] for index in range(len(requests))]

    def remember(self, reply: ChatReply, result: RequestResult) -> None:
        """Keep the words of a spoken answer, which a later request may name by the id of its speech."""
        text = next((output.text for output in result.outputs if isinstance(output, TextOutput)), None)
        if reply.wants_audio and text is not None:
            self.transcripts.add(reply.audio_id, text)

    def note_sent(self, name: Literal["ttft_s", "ttfp_s"], exchange: Exchange) -> None:
        """Note that text or speech is sent; the first time counts."""
        if name not in exchange.notes:
            exchange.notes[name] = round(exchange.elapsed_s(), 6)
            self.metrics.first_sent[name].labels(exchange.route).observe(exchange.elapsed_s())

    async def _next(self, events: AsyncIterator[Event], exchange: Exchange) -> Event:
        # A time limit around each single wait: around a whole generator it would fire in its consumer.
        self._check_abort()
        try:
            async with asyncio.timeout_at(exchange.deadline_s) as wait:
                self._waits.add(wait)
                try:
                    return await anext(events)
                finally:
                    self._waits.discard(wait)
        except TimeoutError:
            self._check_abort()
            limit_s = exchange.deadline_s - exchange.began_s
            raise DeadlineError(f"the request did not finish within {limit_s:g} s") from None

    def _check_abort(self) -> None:
        """Raise `APIError` (503) if the engine sleeps without waiting for its requests."""
        if self._aborts and self.supervisor.is_asleep:
            self.supervisor.check_ready()

    def _count_tokens(self, num_tokens: int, exchange: Exchange) -> None:
        if num_tokens:
            # An exchange may have several requests.
            exchange.num_output_tokens += num_tokens
            exchange.notes["output_tokens"] = exchange.num_output_tokens

    def _log_end(self, result: RequestResult, exchange: Exchange) -> None:
        self.metrics.result(result)
        audio_s = audio_seconds(result.outputs)
        if audio_s > 0:
            exchange.notes |= {"audio_s": round(audio_s, 6), "rtf": round(exchange.elapsed_s() / audio_s, 6)}
            self.metrics.real_time_factor.labels(exchange.route).observe(exchange.elapsed_s() / audio_s)
        self._count_tokens(sum(trace.num_output_tokens or 0 for trace in result.stages), exchange)
        if result.notes:
            exchange.changes |= dict.fromkeys(result.notes)
            exchange.notes["notes"] = list(exchange.changes)
        error = result.error
        if isinstance(error, StageError) and error.request_id is not None:
            self.log.failure(exchange, error, error.details)
