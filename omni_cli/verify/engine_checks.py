"""The checks of a profile: each compares runs of one engine with each other; `reference` compares with the family's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from omni_cli.bench.profile_source import ProfileSource
from omni_cli.checkpoints.files import read_family
from omni_cli.config.schema import ARStageConfig, DiffusionStageConfig, EngineConfig
from omni_cli.errors import InputError, OmniError
from omni_cli.models.scores import EngineOutput, Expected
from omni_cli.outputs import GenerateRequest
from omni_cli.verify.default_requests import MAX_TOKENS_OF_LATER_STAGES, another_medium, longer
from omni_cli.verify.engine_runs import EngineRun, EngineSession
from omni_cli.verify.noise import Noise, get_noise
from omni_cli.verify.reference_memory import check_memory
from omni_cli.verify.reference_process import Answer, Work, get_ways, run_reference
from omni_cli.verify.run_comparison import STREAMED_AUDIO_BOUND, compare_runs
from omni_cli.verify.single_rows import (
    broken,
    count_rows,
    depends_row,
    joined_rows,
    limit_rows,
    noise_row,
    seed_row,
    stop_rows,
    stop_string,
)
from omni_cli.verify.small_cache import small_cache_overrides
from omni_cli.verify.tokenizer_rows import tokenizer_rows
from omni_cli.verify.tokens import get_probabilities, make_decoder
from omni_cli.verify.verdicts import judge_arrays, judge_tokens, worst, worst_of_each
from omni_cli.verify_record import Check, Row, TokenProbability

NUM_CANDIDATES = 8
_PRESSED_TOKENS, _MAX_PRESSED = 96, 16
_MEDIA = {"image": "images", "audio": "audio", "video": "videos"}


@dataclass(frozen=True)
class Mode:
    """A variant of the profile: its name and overrides."""

    name: str
    overrides: tuple[str, ...]


@dataclass(frozen=True)
class VerifyPlan:
    """The profile and requests to verify. With `are_defaults`, requests that the model does not take are dropped.

    `modes` beside the first are compared with it.
    """

    source: ProfileSource
    requests: tuple[GenerateRequest, ...]
    are_defaults: bool
    modes: tuple[Mode, ...]
    low_memory: bool = False
    verbose: bool = False


class EngineChecks:
    """Runs the checks; `rows` and `probabilities` have those that are done, also after an early end."""

    def __init__(
        self, plan: VerifyPlan, folder: Path, on_event: Callable[[object], None], say: Callable[[str], None]
    ) -> None:
        """Exchange files with the reference in `folder`; `say` shows progress."""
        self.plan = plan
        self.rows: list[Row] = []
        self.probabilities: list[TokenProbability] = []
        self._folder, self._on_event, self._say = folder, on_event, say
        self._noise: Noise | None = None
        self._expected: Sequence[Expected | str] = ()

    async def run(self) -> None:
        """Run all checks. Raises `OmniError` for an engine that does not start or a request that it cannot run."""
        first, *others = self.plan.modes
        config = self._load(first.overrides)
        async with self._session(config) as session:
            self._checkpoint, self._last = Path(session.checkpoint), config.stages[-1].name
            self._family = read_family(self._checkpoint)
            self._decode = make_decoder(self._checkpoint, config)
            self._requests = await self._usable(session)
            self.rows += await tokenizer_rows(session, self._checkpoint)
            alone = await self._alone(session, self._requests)
            outputs = [run.output for run in alone]
            if not self.plan.low_memory:
                await self._reference(first.overrides, config, outputs)
                await self._others(session, alone)
        if self.plan.low_memory:
            # The engine, loaded again, and the reference are never in memory at once.
            await self._reference(first.overrides, config, outputs)
            async with self._session(config) as session:
                await self._others(session, alone)
        await self._pressed(first.overrides, config, outputs)
        for mode in others:
            await self._mode(mode, outputs)

    async def _others(self, session: EngineSession, alone: Sequence[EngineRun]) -> None:
        outputs = [run.output for run in alone]
        await self._batched(session, outputs)
        await self._streamed(session, alone)
        await self._repeat(session, outputs)
        await self._seeds(session)
        await self._limits(session, alone)
        await self._modalities(session)

    def _load(self, overrides: Sequence[str]) -> EngineConfig:
        return self.plan.source.load(tuple(overrides))

    def _session(self, config: EngineConfig) -> EngineSession:
        return EngineSession(config, verbose=self.plan.verbose, on_event=self._on_event)

    async def _usable(self, session: EngineSession) -> tuple[GenerateRequest, ...]:
        """Drop our own requests with media that the model does not take."""
        if not self.plan.are_defaults:
            return self.plan.requests
        usable = []
        for request in self.plan.requests:
            is_plain = not (request.images or request.audio or request.videos)
            if not is_plain:
                (run,) = await self._alone(session, [request])
                if isinstance(run.result.error, InputError):
                    continue
            usable.append(request)
        return tuple(usable)

    async def _alone(self, session: EngineSession, requests: Sequence[GenerateRequest]) -> list[EngineRun]:
        runs = []
        for number, request in enumerate(requests):
            self._say(f"alone: request {number + 1} of {len(requests)}")
            runs += await session.alone([request])
        return runs

    async def _reference(
        self, overrides: tuple[str, ...], config: EngineConfig, outputs: Sequence[EngineOutput]
    ) -> None:
        reference = self._family.reference
        answer = Answer(why=f"the model family `{self._family.name}` has no reference")
        if reference is not None:
            ways = get_ways(config.dtype, low_memory=self.plan.low_memory)
            check_memory(self._checkpoint, ways)
            work = Work(reference, str(self._checkpoint), self.plan.source, overrides, ways, tuple(outputs))
            try:
                answer = await run_reference(work, self._folder, self._say, verbose=self.plan.verbose)
            except OmniError as error:
                answer = Answer(why=error.message)
        if answer.why is not None:
            self.rows.append(Row(check="reference", verdict="not checked", why=answer.why))
            return
        self._noise = get_noise(answer.results)
        wide = answer.results[0]
        for stage in config.stages:
            if isinstance(stage, ARStageConfig):
                self.rows.append(judge_tokens(stage.name, outputs, wide, self._noise, self._decode))
        self.rows += judge_arrays(outputs, answer.results, self._noise)
        for output, item in zip(outputs, wide, strict=True):
            if isinstance(item, str):
                name = output.request.request_id
                self.rows.append(Row(check="reference", verdict="not checked", request=name, why=item))
        self._expected = wide
        self.probabilities = get_probabilities(outputs, wide, self._decode)

    async def _batched(self, session: EngineSession, alone: Sequence[EngineOutput]) -> None:
        self._say("all requests at once")
        together = await session.at_once(self._requests)
        rows = self._compare("alone = batched", alone, together)
        self._say("in another order, beside long requests")
        beside = [longer(request) for request in self._requests[:2]]
        reverse = await session.at_once([*beside, *self._requests[::-1]])
        rows += self._compare("alone = batched", alone, reverse[len(beside) :][::-1])
        self._add(rows)

    async def _streamed(self, session: EngineSession, alone: Sequence[EngineRun]) -> None:
        if all(run.text is None and run.audio is None for run in alone):
            return
        self._say("streamed")
        makes_audio = any(run.audio is not None for run in alone) or None
        streamed = await session.at_once([replace(run.request, stream_audio=makes_audio) for run in alone])
        rows = self._compare("streamed = whole", [run.output for run in alone], streamed, STREAMED_AUDIO_BOUND)
        stages = [stage.name for stage in session.config.stages]
        for whole, run in zip(alone, streamed, strict=True):
            name = run.request.request_id
            for other, text in ((whole, whole.streamed_text), (run, run.streamed_text)):
                if other.text is not None and text != other.text.text:
                    why = "the text deltas, joined, are not the text"
                    rows.append(broken("streamed = whole", stages[0], name, other.text.text, text, why))
            if run.audio is not None and run.streamed_audio is not None:
                rows += joined_rows(stages[-1], name, run.streamed_audio, run.audio.samples)
        self._add(rows)

    async def _repeat(self, session: EngineSession, alone: Sequence[EngineOutput]) -> None:
        self._say("the same requests again")
        self._add(self._compare("repeat", alone, await session.alone(self._requests)))

    async def _pressed(self, overrides: tuple[str, ...], config: EngineConfig, alone: Sequence[EngineOutput]) -> None:
        """Run requests in an engine without prefix cache and with a KV cache that holds few of them.

        There, many requests that grow by several blocks are preempted, and must end as one that is alone.
        """
        request, size = self._requests[0], num_tokens(alone[0])
        if "max_tokens" in request.sampling:
            text_only: dict[str, Any] = {"modalities": frozenset({"text"})} if self._makes_text else {}
            sampling = {**request.sampling, "max_tokens": _PRESSED_TOKENS, "ignore_eos": True}
            request, size = replace(request, sampling=sampling, **text_only), size + _PRESSED_TOKENS
        num_cached = max(2 * size, *(num_tokens(output) for output in alone))
        pressed = small_cache_overrides(config, self._checkpoint, num_cached)
        if pressed is None:
            return
        self._say("without prefix cache, in a small KV cache")
        modes: dict[str, Check] = {"without prefix cache": "repeat", "preempted": "alone = batched"}
        try:
            async with self._session(self._load(overrides + pressed)) as session:
                runs = await session.at_once(self._requests)
                single = await session.alone([request])
                many = await session.at_once([request] * min(2 * num_cached // size, _MAX_PRESSED))
                preempted = session.stages[0].execution_counters.get("preemptions", 0)
        except OmniError as error:
            self.rows += [Row(check=modes[mode], verdict="not checked", mode=mode, why=error.message) for mode in modes]
            return
        self._add(self._compare("repeat", alone, runs, mode="without prefix cache"))
        if preempted:
            expected = [single[0].output] * len(many)
            self._add(self._compare("alone = batched", expected, many, mode="preempted"))
        else:
            why = "the engine preempted no request"
            self.rows.append(Row(check="alone = batched", verdict="not checked", mode="preempted", why=why))

    async def _mode(self, mode: Mode, alone: Sequence[EngineOutput]) -> None:
        self._say(f"mode {mode.name}")
        try:
            async with self._session(self._load(mode.overrides)) as session:
                runs = await self._alone(session, self._requests)
                self._add(self._compare("modes", alone, runs, mode=mode.name))
        except OmniError as error:
            self.rows.append(Row(check="modes", verdict="not checked", mode=mode.name, why=error.message))

    async def _seeds(self, session: EngineSession) -> None:
        """Sample in the first AR stage, and denoise the same answer, with one seed twice and with others."""
        self._say("seeds")
        first, *_ = stages = session.config.stages
        request = self._requests[0]
        seeds = (request.seed, request.seed, request.seed + 1, request.seed + 2)
        if isinstance(first, ARStageConfig) and "max_tokens" not in request.diffusion:
            sampling = {**request.sampling, "temperature": 1.0, "top_p": 1.0, "top_k": 0}
            text_only: dict[str, Any] = (
                {"modalities": frozenset({"text"})} if len(stages) > 1 and self._makes_text else {}
            )
            runs = await session.at_once(
                [replace(request, sampling=sampling, seed=seed, **text_only) for seed in seeds]
            )
            errors = [run.result.error for run in runs if run.result.error is not None]
            if errors:
                self.rows.append(Row(check="seed", stage=first.name, verdict="not checked", why=errors[0].message))
            else:
                self.rows.append(seed_row(first.name, [run.output for run in runs]))
        last = stages[-1]
        if isinstance(last, DiffusionStageConfig) and getattr(last, "num_inference_steps", None) is not None:
            runs = await session.at_once([replace(request, seed=seed) for seed in seeds])
            self.rows.append(noise_row(last.name, [run.output for run in runs], self._noise))

    @property
    def _makes_text(self) -> bool:
        return self._family.roles[0].makes == "text"

    async def _limits(self, session: EngineSession, alone: Sequence[EngineRun]) -> None:
        """Check the maximum of tokens, a stop string and the counts of tokens of a text answer."""
        stage = session.config.stages[0]
        run = next((run for run in alone if run.text is not None and len(run.text.token_ids) > 3), None)
        if not isinstance(stage, ARStageConfig) or run is None or run.text is None:
            return
        self._say("limits")
        text_only = replace(run.request, modalities=frozenset({"text"}))
        few = replace(text_only, sampling={**run.request.sampling, "max_tokens": 3})
        stop = stop_string(run.text.text)
        runs = await session.alone([few])
        rows = list(limit_rows(stage.name, runs[0], 3))
        if stop is not None:
            (stopped,) = await session.alone([replace(text_only, sampling={**run.request.sampling, "stop": [stop]})])
            rows += stop_rows(stage.name, stopped, run.text.text, stop)
        rows += [*count_rows(stage.name, alone, self._expected), *count_rows(stage.name, runs, ())]
        self._add([worst([Row(check="limits", stage=stage.name, verdict="equal"), *rows])])

    async def _modalities(self, session: EngineSession) -> None:
        """Check that an answer depends on each medium that it comes with, and on the order of two images.

        The prompts are long enough to fill blocks of the prefix cache behind the media, and the other medium of a
        request is as large as its own: a cache that takes one for the other changes the answer, which a salt tells.
        """
        self._say("modalities")
        rows: list[Row] = []
        stage = session.config.stages[0]
        for medium, field in _MEDIA.items():
            request = next((item for item in self._requests if len(getattr(item, field)) == 1), None)
            if request is None:
                continue
            others: list[dict[str, Any]] = [{field: (another_medium(request, field),)}, {}]
            if isinstance(stage, ARStageConfig):
                others += [{field: ()}, {"cache_salt": "omni-verify"}]
                request = longer(request)
            runs = await session.alone([replace(request, **fields) for fields in others])
            if any(run.result.error is not None for run in runs):
                continue
            outputs = [run.output for run in runs]
            rows.append(depends_row(stage.name, request, outputs[0], outputs[1], f"another {medium} changes nothing"))
            if len(outputs) > 2:
                rows.append(depends_row(stage.name, request, outputs[2], outputs[1], f"the {medium} changes nothing"))
                rows += self._compare("modalities", outputs[3:], runs[1:2])
        request = next((item for item in self._requests if len(item.images) > 1), None)
        if request is not None:
            request = longer(request)
            runs = await session.alone([request, replace(request, images=request.images[::-1])])
            if all(run.result.error is None for run in runs):
                message = "the order of the images changes nothing"
                rows.append(depends_row(stage.name, request, runs[0].output, runs[1].output, message))
        if rows:
            self._add([worst(rows)])

    def _compare(
        self,
        check: Check,
        alone: Sequence[EngineOutput],
        runs: Sequence[EngineRun],
        media_bound: float = 0.0,
        mode: str | None = None,
    ) -> list[Row]:
        stages = [*alone[0].tokens]
        if self._last not in stages and any(output.arrays for output in alone):
            stages.append(self._last)
        outputs = [run.output for run in runs]
        return compare_runs(
            check, stages, alone, outputs, self._noise, self._decode, mode=mode, media_bound=media_bound
        )

    def _add(self, rows: Sequence[Row]) -> None:
        """Add a row per check, stage and mode: the worst."""
        self.rows += worst_of_each(rows)


def num_tokens(output: EngineOutput) -> int:
    """Count the tokens of a request's prompt and answer in the first AR stage."""
    first = next(iter(output.tokens.values()), None)
    return 0 if first is None else (output.num_input_tokens or 0) + len(first.token_ids)


def greedy_overrides(config: EngineConfig, *, shorten: bool) -> tuple[str, ...]:
    """Return overrides that make a profile's AR stages greedy and report log-probabilities.

    With `shorten`, later AR stages end after a few tokens, so that the check takes seconds.
    """
    overrides = []
    for number, stage in enumerate(config.stages):
        if isinstance(stage, ARStageConfig):
            overrides += [f"{stage.name}.sampling.temperature=0", f"{stage.name}.sampling.logprobs={NUM_CANDIDATES}"]
            limit = stage.sampling.max_tokens
            if shorten and number and (limit is None or limit > MAX_TOKENS_OF_LATER_STAGES):
                overrides.append(f"{stage.name}.sampling.max_tokens={MAX_TOKENS_OF_LATER_STAGES}")
    return tuple(overrides)
