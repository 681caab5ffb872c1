"""A load test as a benchmark: one variant per server or per load, a connection instead of a process."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, contextmanager, suppress
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from omni_cli.core.errors import InputError, UsageError
from omni_cli.core.files import allow_open_files, scratch_folder
from omni_cli.measure.bench.benchmark import Plan
from omni_cli.measure.bench.environment import read_environment
from omni_cli.measure.bench.outputs import hash_arrays, save_arrays
from omni_cli.measure.bench.protocol import Loaded, Loading, Ran
from omni_cli.measure.bench.quality import WordJudge
from omni_cli.measure.bench.record_builder import RecordBuilder
from omni_cli.measure.bench.slo import check_limits_apply, row_limits
from omni_cli.measure.bench.variant_configs import VariantConfig
from omni_cli.measure.bench.variant_process import VariantError
from omni_cli.measure.loadtest.observations import (
    Canaries,
    Stair,
    ask_canaries,
    find_stair,
    limit_of_stairs,
    parallel_limit,
    served_at_once,
    usual_limit,
)
from omni_cli.measure.loadtest.server_energy import ServerEnergy
from omni_cli.measure.loadtest.traffic import Clients, ClosedLoop, Traffic
from omni_cli.measure.loadtest.window import Window, check_sound, get_utterance, window_metrics, window_work
from omni_cli.measure.loadtest.workload import OutgoingRequest, RequestMaker, ServerWorkload
from omni_cli.openai_api.client import Client, Outcome, Target, find_targets
from omni_cli.openai_api.reading import ServerAnswer
from omni_cli.records.metrics import E2E
from omni_cli.records.record import ANSWERS, NO_OUTPUTS, RATE, Failures, describe_failures
from omni_cli.stats.referee import OBSERVATIONS

if TYPE_CHECKING:
    import numpy as np

T = TypeVar("T")

_SPARE_FILES = 64
_HINTS = {
    "HTTP 400": "the server rejects the request: try `--no-ignore-eos`, `--input-len` or `--extra-body`",
    "HTTP 401": "set OPENAI_API_KEY, or pass `--api-key`",
    "HTTP 403": "set OPENAI_API_KEY, or pass `--api-key`",
    "HTTP 404": "choose a model and an endpoint that it has: `--model`, `--endpoint`",
    "HTTP 429": "send fewer requests at once, or raise the server's limit (`omni serve --max-requests`)",
    "HTTP 503": "the server is starting or restarting a stage: wait until it is ready",
    "timeout": "raise `--request-timeout`",
    "too many open files in the client": "raise the limit with `ulimit -n`, or send fewer: `--num-requests`",
    "connection refused": "the server has stopped or accepts no more connections: see its log",
    "connection lost": "the server has stopped or closed the connection: see its log",
}


@contextmanager
def server_plan(
    urls: Sequence[str],
    traffics: Sequence[Traffic],
    workload: ServerWorkload,
    *,
    model: str | None,
    api_key: str | None,
    request_timeout_s: float,
    command: tuple[str, ...],
    canaries: Canaries | None = None,
    is_varied: bool = False,
    reads_energy: bool = False,
    judge: WordJudge | None = None,
) -> Iterator[Plan]:
    """Plan the test of these servers under these loads; asks each for its models. Raises `OmniError`.

    `canaries`: each server is first asked for new prompts twice, for signs of a cache, and also for those of the first
    window. `is_varied`: variants are named by
    their load even if there is only one. `reads_energy`: each server is asked for its counters. `judge` counts the
    words of answers.
    """
    _allow_open_files(traffics, workload.num_requests)
    pairs = [(target, traffic) for target in find_targets(urls, model, api_key) for traffic in traffics]
    variants = _variant_configs(pairs, varied=is_varied or len(traffics) > 1)
    environment = read_environment()
    environment["versions"]["aiohttp"] = version("aiohttp")

    turn = SendingTurn()

    def launch(index: int) -> ServerVariant:
        target, traffic = pairs[index]
        client = Client(target.url, api_key=api_key, timeout_s=request_timeout_s)
        variant = ServerVariant(variants[index].name, client, target, workload, traffic, turn)
        variant.canaries, variant.reads_energy, variant.judge = canaries, reads_energy, judge
        return variant

    with scratch_folder("omni-bench-") as folder:
        builder = RecordBuilder(
            variants, command=command, environment=environment, workload=workload.describe(), folder=folder
        )
        yield Plan(builder, launch, is_local=False)


def _variant_configs(pairs: Sequence[tuple[Target, Traffic]], *, varied: bool) -> list[VariantConfig]:
    """Return variants named by the server or the load; a repeated name is A against A."""
    variants: list[VariantConfig] = []
    for target, traffic in pairs:
        # An address may change from run to run, so a baseline is compared by its requests.
        settings: dict[str, object] = {"url": target.url, "model": target.model}
        name = target.url.partition("//")[2]
        if varied:
            settings |= traffic.settings
            name = "=".join(map(str, next(iter(traffic.settings.items()))))
        earlier = sum(variant.name.partition(" (")[0] == name for variant in variants)
        variants.append(VariantConfig(f"{name} ({earlier + 1})" if earlier else name, settings=settings))
    return variants


def _allow_open_files(traffics: Sequence[Traffic], num_requests: int | None) -> None:
    """Raise the limit of open files, because every request is a connection. Raises `UsageError` if it is too low."""
    open_at_once = 0
    for traffic in traffics:
        sent = num_requests or traffic.default_requests
        open_at_once = max(open_at_once, min(traffic.concurrency, sent) if isinstance(traffic, ClosedLoop) else sent)
    needed = open_at_once + _SPARE_FILES
    allowed = allow_open_files(needed)
    if allowed < needed:
        message = f"up to {open_at_once} requests at once need more open files than this system allows ({allowed})"
        raise UsageError(message, hint="raise the limit with `ulimit -Hn`, or send fewer: `--num-requests`")


class SendingTurn:
    """The variant that sends requests: another one begins when its last answers have come."""

    def __init__(self) -> None:
        self._holder: ServerVariant | None = None

    async def take(self, variant: ServerVariant) -> None:
        if self._holder is not None and self._holder is not variant:
            await self._holder.rest()
        self._holder = variant


class ServerVariant:
    """Sends windows of requests to one server. Owned by one event loop."""

    pid = None

    def __init__(
        self,
        name: str,
        client: Client,
        target: Target,
        workload: ServerWorkload,
        traffic: Traffic,
        turn: SendingTurn,
    ) -> None:
        self.name = name
        self._client = client
        self._target = target
        self._workload = workload
        self._traffic = traffic
        self._turn = turn
        self._count = workload.num_requests or traffic.default_requests
        self._maker = RequestMaker(workload, self._count, target)
        self._stack = AsyncExitStack()
        self.canaries: Canaries | None = None
        self.reads_energy = False
        self._energy = ServerEnergy(self._client)
        self.judge: WordJudge | None = None
        # Filled while windows run; the record has the state at its end.
        self._observed: dict[str, object] = {"extra_requests": 0, "parallel_limit": None}
        self._limits: list[int | None] = []  # of a closed loop's bursts
        self._stairs: list[Stair | None] = []  # of an open loop's windows
        self._most_at_once = 0
        self._clients: Clients | None = None
        if isinstance(traffic, ClosedLoop):
            # One client alone is never in step with others.
            self._clients = Clients(traffic.concurrency, self._send_extra if traffic.concurrency > 1 else None)

    async def start(self) -> None:
        """Open the client."""
        await self._stack.enter_async_context(self._client)
        if self._clients is not None:
            self._stack.push_async_callback(self._clients.close)

    async def load(self, _on_loading: Callable[[Loading], None]) -> Loaded:
        """Load nothing: the server has loaded its model. One that refuses `verbose_json` transcribes to `json`."""
        description = self._target.description
        if self._workload.endpoint.sends_speech and "response_format" not in self._workload.extra_body:
            outcome = await self._send(self._maker.requests(0)[0], time.perf_counter())
            if outcome.failure is not None and outcome.failure.kind.startswith(("HTTP 400", "HTTP 422")):
                self._maker.form = {"response_format": "json"}
                description = {**description, **self._maker.form}
        return Loaded((), server={**description, OBSERVATIONS: self._observed})

    async def _send(self, request: OutgoingRequest, due_s: float) -> Outcome:
        path = self._workload.endpoint.path
        outcome = await self._client.post(path, request.body, self._maker.reader(), due_s)
        if outcome.answer is not None:
            outcome.answer.sent_sound_s, outcome.answer.expected = request.sound_s, request.expected
        return replace(outcome, asked=request.asked)

    async def run(self, number: int, *, when: str, outputs: Path | None = None, timeout_s: float | None = None) -> Ran:
        """Run one window. Raises `VariantError` if none of its requests was answered.

        Each request has its own timeout, so `timeout_s` is not needed for a server that hangs.
        """
        await self._turn.take(self)
        requests = await asyncio.to_thread(self._maker.requests, number)
        if number == 0 and self.reads_energy:
            await self._energy.open()
        if number == 0 and self.canaries is not None:
            await self._ask_canaries()
        before = await self._energy.read()
        sent = await self._send_window(requests, number)
        after = await _to_the_end(self._energy.read())
        if self.judge is not None:
            # No request runs while words are counted; an interrupt ends those that are in no window.
            with suppress(asyncio.CancelledError):
                await self.rest()
        window = await _to_the_end(self._check(sent))
        if not window.answers:
            raise self._no_answer(window, when)
        if number == 0:
            check_limits_apply(window.rows(), row_limits(self._workload.slos), f"`{self.name}`")
        ran = await _to_the_end(asyncio.to_thread(self._ran, window, outputs))
        if self.reads_energy:
            ran = msgspec.structs.replace(ran, used=self._energy.get_used(before, after, window.get_part))
        # The time of hearing the answers, too, which the budget has to have.
        lasted_s = time.perf_counter() - sent.began_s
        return ran if self.judge is None else msgspec.structs.replace(ran, lasted_s=lasted_s)

    async def _send_window(self, requests: Sequence[OutgoingRequest], number: int) -> Window:
        """Send the requests of a window. An interrupt, after which the task is still `cancelling`, ends the window with
        the answers so far."""
        sent: dict[int, float] = {}
        outcomes: dict[int, Outcome] = {}

        async def send(index: int, due_s: float) -> Outcome:
            sent[index] = due_s
            outcomes[index] = outcome = await self._send(requests[index], due_s)
            return outcome

        began_s, count = time.perf_counter(), len(requests)
        clients = offered_s = unanswered_s = None
        try:
            if isinstance(self._traffic, ClosedLoop):
                clients = self._traffic.concurrency
                assert self._clients is not None
                is_burst = not self._clients.are_busy
                await self._clients.window(send, count)
                if is_burst and self._clients.burst:
                    self._limits.append(parallel_limit(self._clients.burst))
                self._observed["parallel_limit"] = usual_limit(self._limits)
                self._observed["extra_requests"] = self._clients.num_extras
            else:
                offered_s = self._traffic.offered_s(count)
                self._stairs.append(find_stair(await self._traffic.run(send, count, number)))
                self._most_at_once = max(self._most_at_once, served_at_once(outcomes.values()))
                self._observed["served_at_once"] = self._most_at_once
                self._observed["parallel_limit"] = limit_of_stairs(self._stairs)
        except asyncio.CancelledError:
            if not any(outcome.answer for outcome in outcomes.values()):
                raise
            now_s = time.perf_counter()
            unanswered_s = tuple(now_s - due_s for index, due_s in sent.items() if index not in outcomes)
            offered_s = offered_s and min(offered_s, now_s - began_s)
        answered = tuple(outcomes[index] for index in sorted(outcomes))
        if unanswered_s is not None and self._clients is not None:
            await self._clients.close()
        return Window(answered, began_s, time.perf_counter(), clients, offered_s, unanswered_s)

    async def rest(self) -> None:
        """Wait for the answers to requests that were sent, and send no more."""
        if self._clients is not None:
            await self._clients.rest()

    async def close(self) -> None:
        """Close the client. Safe to call twice."""
        await self._stack.aclose()

    async def _check(self, sent: Window) -> Window:
        """Read the sounds of a window, and count the wrong words of each answer."""
        window = replace(sent, outcomes=await asyncio.to_thread(lambda: tuple(map(check_sound, sent.outcomes))))
        if self.judge is not None:
            said = [get_utterance(answer) for answer in window.answers]
            found = await asyncio.to_thread(self.judge.judge, said)
            for answer, errors in zip(window.answers, found, strict=True):
                answer.word_errors = errors
        return window

    async def _ask_canaries(self) -> None:
        async def post(body: Mapping[str, object]) -> Outcome:
            return await self._send(OutgoingRequest(msgspec.json.encode(body), {}), time.perf_counter())

        dataset = self._workload.dataset
        if bodies := self._maker.canaries():
            self._observed |= await ask_canaries(bodies, post, asks_own=self.canaries == "own")
            self._observed |= {} if dataset is None else {"distinct_requests": len(dataset.requests)}

    async def _send_extra(self, index: int, due_s: float) -> Outcome:
        return await self._send(self._maker.extra_request(index), due_s)

    def _ran(self, window: Window, outputs: Path | None) -> Ran:
        arrays = answer_arrays(window.answers)
        if outputs is not None:
            save_arrays(outputs, arrays)
        metrics = window_metrics(window, self._workload.slos)
        is_partial = bool(window.failures) or window.unanswered_s is not None
        return Ran(
            e2e_s=metrics.pop(E2E),
            metrics=metrics,
            work=window_work(window),
            # Missing answers cannot be compared.
            output_sha256=None if is_partial else hash_answers(window.answers, arrays),
            accounted={},
            memory={},
            lasted_s=window.ended_s - window.began_s,
            requests=window.columns(),
            failures=window.failures,
            unanswered_s=window.unanswered_s,
        )

    def _no_answer(self, window: Window, when: str) -> VariantError:
        failures = window.failures
        return VariantError(
            f"`{self.name}` answered none of {len(window.outcomes)} requests ({when}): {describe_failures(failures)}",
            hint=hint_on(failures),
        )


async def _to_the_end(work: Coroutine[Any, Any, T]) -> T:
    """Work, also if this task is cancelled meanwhile: nothing measured is lost."""
    task = asyncio.ensure_future(work)
    while not task.done():
        with suppress(asyncio.CancelledError):
            await asyncio.wait({task})
    return task.result()


def answer_arrays(answers: Sequence[ServerAnswer]) -> dict[str, np.ndarray]:
    """Return arrays like `output_arrays` of `omni bench`: texts as UTF-8 bytes, samples float32, pixels uint8.

    The choices of an answer, with their tool calls, refusals, reasoning and finish reasons, are one text, which is
    equal only if all of them are.
    """
    import numpy as np

    arrays: dict[str, np.ndarray] = {}
    for number, answer in enumerate(answers):
        if answer.choices:
            choices = [answer.choices[index] for index in sorted(answer.choices)]
            ended = [f"{item.comparison_text}\0finish_reason\0{item.finish_reason}" for item in choices]
            arrays[f"{number}.tokens.text"] = np.frombuffer("\0choice\0".join(ended).encode(), np.uint8)
        if answer.sound is not None:
            arrays[f"{number}.audio.0"] = answer.sound.samples
            arrays[f"{number}.audio.0{RATE}"] = np.array(answer.sound.sample_rate)
        for position, image in enumerate(answer.images):
            arrays[f"{number}.image.{position}"] = _pixels(image)
    return arrays


def hash_answers(answers: Sequence[ServerAnswer], arrays: dict[str, np.ndarray]) -> str:
    """Return `sha256-answers:...`, which is not compared with the hashes in earlier records."""
    has_text = any(choice.comparison_text for answer in answers for choice in answer.choices.values())
    if not has_text and not any(answer.pcm or answer.images for answer in answers):
        return NO_OUTPUTS
    return ANSWERS + hash_arrays(arrays).partition(":")[2]


def _pixels(image: bytes) -> np.ndarray:
    """Decode to uint8 (height, width, 3); return the bytes unchanged if they are not an image."""
    import numpy as np

    from omni_cli.requests.media.reading import MediaReader, in_memory

    try:
        with in_memory(image) as file:
            return MediaReader(lambda _note: None).image(file, "image of the answer")
    except InputError:
        return np.frombuffer(image, np.uint8)


def hint_on(failures: Mapping[str, Failures]) -> str | None:
    """Return the action to take on the most frequent kind."""
    kind = next(iter(failures), "")
    return _HINTS.get(kind) or _HINTS.get(" ".join(kind.split()[:2]))
