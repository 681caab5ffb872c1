"""An engine in this process as the subject of `omni verify`."""

from __future__ import annotations

import math
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import numpy as np

from omni_cli.checkpoints.stage_weights import stage_decoders
from omni_cli.config.schema import ARStageConfig, DiffusionStageConfig, EngineConfig
from omni_cli.core.compat.own_tokenizers import PROBES
from omni_cli.core.errors import InputError, OmniError
from omni_cli.engine.memory_plan import cache_bytes_per_token
from omni_cli.engine.omni_llm import OmniLLM
from omni_cli.measure.bench.outputs import output_arrays
from omni_cli.measure.bench.profile_source import ProfileSource
from omni_cli.measure.bench.variant_configs import VariantConfig
from omni_cli.measure.verify.default_requests import MAX_TOKENS_OF_LATER_STAGES
from omni_cli.measure.verify.reference import Reference
from omni_cli.measure.verify.run_comparison import STREAMED_AUDIO_BOUND, Answer, different_row, text_row
from omni_cli.measure.verify.subject import Subject
from omni_cli.measure.verify.tokens import make_decoder, make_tokens
from omni_cli.measure.verify.verdicts import replace_values
from omni_cli.models.scores import EngineOutput, EngineTokens
from omni_cli.records.verify_record import Check, Row
from omni_cli.requests.contents import TextOptions
from omni_cli.requests.events import AudioChunk, TextDelta
from omni_cli.requests.outputs import AudioOutput, GenerateRequest, RequestResult, StageTrace, TextOutput

NUM_CANDIDATES = 8
_PRESSED_TOKENS, _MAX_PRESSED = 96, 16
_BLOCK_SIZE = 32


@dataclass(frozen=True, kw_only=True)
class EngineAnswer(Answer):
    """`text_deltas` and `audio_chunks` arrived before the end, joined; `text_output` and `audio` are the outputs."""

    text_output: TextOutput | None = None
    audio: AudioOutput | None = None
    text_deltas: str = ""
    audio_chunks: np.ndarray | None = None


class EngineSubject(Subject):
    """The engine of a profile with the overrides of the first mode; `say` shows progress."""

    count_names = ("the count of output tokens", "the count of input tokens")
    media = ("images", "audio", "videos")

    def __init__(
        self,
        source: ProfileSource,
        modes: Sequence[VariantConfig],
        *,
        on_event: Callable[[object], None],
        say: Callable[[str], None],
        low_memory: bool = False,
        verbose: bool = False,
        reference_python: str | None = None,
    ) -> None:
        self._source, self._overrides, self._modes = source, modes[0].overrides, tuple(modes[1:])
        self._on_event, self._say, self._low_memory, self._verbose = on_event, say, low_memory, verbose
        self._reference_python = reference_python
        self.config = config = source.load(self._overrides)
        first, last = config.stages[0], config.stages[-1]
        self.stage, self.last = first.name, last.name
        self.caches_prompts = self.can_omit_media = isinstance(first, ARStageConfig)
        if isinstance(first, ARStageConfig):
            self.sampling_stage = first.name
        if isinstance(last, DiffusionStageConfig) and getattr(last, "num_inference_steps", None) is not None:
            self.denoising_stage = last.name
        limits: tuple[Check, ...] = ("limits",) if self.caches_prompts else ()
        self.checks = ("alone = batched", "streamed = whole", "repeat", "seed", *limits, "modalities")
        self._num_asked = 0
        self.notes: dict[str, None] = {}

    async def __aenter__(self) -> Self:
        self._engine = OmniLLM(self.config, verbose=self._verbose)
        await self._engine.start(self._on_event)
        folder = self._folder = Path(self._engine.checkpoint)
        self.reference = Reference(
            self._source,
            str(folder),
            self._overrides,
            low_memory=self._low_memory,
            verbose=self._verbose,
            python=self._reference_python,
        )
        self._makes_text = self.reference.family.roles[0].makes == "text"
        self.decode = make_decoder(folder, self.config)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._engine.close()

    async def prepare(
        self, requests: Sequence[GenerateRequest], *, are_defaults: bool
    ) -> tuple[tuple[GenerateRequest, ...], list[Row]]:
        usable = []
        for request in requests:
            has_media = are_defaults and (request.media.images or request.media.audio or request.media.videos)
            if not (has_media and (await self.ask(request)).is_refused):
                usable.append(request)
        return tuple(usable), await self.tokenizer_rows(self._folder)

    async def ask(self, request: GenerateRequest) -> EngineAnswer:
        self._num_asked += 1
        named = replace(request, request_id=f"{request.request_id} #{self._num_asked}")
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
        assert result is not None
        self.notes |= dict.fromkeys(result.notes)
        error = result.error
        if error is not None:
            is_refused = isinstance(error, InputError)
            return EngineAnswer(request=request, error=error, failure=error.message, is_refused=is_refused)
        output = next((output for output in result.outputs if isinstance(output, TextOutput)), None)
        first = result.stages[0] if result.stages else None
        transcript = None if output is None or not request.transcription.timestamps else output.transcript
        sounds = [(number, item) for number, item in enumerate(result.outputs) if isinstance(item, AudioOutput)]
        arrays = {name: array for name, array in output_arrays([result]).items() if ".tokens." not in name}
        tokens = {trace.name: _get_tokens(trace) for trace in result.stages if trace.output_token_ids is not None}
        rates = {f"0.audio.{number}": sound.sample_rate for number, sound in sounds}
        num_input = None if first is None else first.num_input_tokens
        return EngineAnswer(
            request=request,
            result=EngineOutput(request, tokens, arrays, rates, num_input),
            text=None if output is None else output.text,
            finish_reason=None if output is None else output.finish_reason,
            num_output_tokens=None if first is None else first.num_output_tokens,
            num_input_tokens=num_input,
            allowed_counts=() if first is None else (len(first.output_token_ids or ()),),
            text_output=output,
            audio=sounds[0][1] if sounds else None,
            text_deltas="".join(text),
            audio_chunks=np.concatenate(chunks) if chunks else None,
            spans=None if transcript is None else tuple((part.start_s, part.end_s) for part in transcript.segments),
        )

    async def stream_rows(self, alone: Sequence[Answer]) -> list[Row]:
        """Judge streams that are all made at once: their parts, and what the parts make together."""
        whole = [answer for answer in alone if isinstance(answer, EngineAnswer)]
        if all(answer.text is None and answer.audio is None for answer in whole):
            return []
        makes_audio = any(answer.audio is not None for answer in whole) or None
        requests = [answer.request for answer in whole]
        streamed = await self.ask_at_once(
            [replace(item, speech=replace(item.speech, stream_audio=makes_audio)) for item in requests]
        )
        rows = self.compare("streamed = whole", alone, streamed, media_bound=STREAMED_AUDIO_BOUND)
        for answer_alone, streamed_answer in zip(whole, streamed, strict=True):
            assert isinstance(streamed_answer, EngineAnswer)
            name, audio, joined = answer_alone.request.request_id, streamed_answer.audio, streamed_answer.audio_chunks
            for answer in (answer_alone, streamed_answer):
                if answer.text is not None and answer.text_deltas != answer.text:
                    why = "the text deltas, joined, are not the text"
                    rows.append(text_row("streamed = whole", self.stage, name, answer.text, answer.text_deltas, why))
            if joined is not None and audio is not None and not np.array_equal(joined, audio.samples):
                why = "the audio chunks, joined, are not the audio"
                sizes = {"expected": f"{len(audio.samples)} samples", "got": f"{len(joined)} samples"}
                rows.append(different_row("streamed = whole", self.last, name, why, **sizes))
        return rows

    def only_text(self, request: GenerateRequest) -> GenerateRequest:
        return replace(request, modalities=frozenset({"text"})) if self._makes_text else request

    def to_reference(self, alone: Sequence[Answer]) -> tuple[list[EngineOutput], list[Row]]:
        return [answer.output for answer in alone], []

    async def mode_rows(self, alone: Sequence[Answer]) -> AsyncGenerator[list[Row], None]:
        """Compare an engine that preempts requests, then the further modes, with these answers."""
        yield await self._pressed_rows(alone)
        for mode in self._modes:
            self._say(f"mode {mode.name}")
            try:
                async with self._open(mode.overrides) as engine:
                    rows = self.compare(
                        "modes", alone, [await engine.ask(answer.request) for answer in alone], mode=mode.name
                    )
            except OmniError as error:
                rows = [Row(check="modes", verdict="not checked", mode=mode.name, why=error.message)]
            yield rows

    def _open(self, overrides: tuple[str, ...]) -> EngineSubject:
        opened = EngineSubject(
            self._source, [VariantConfig("", overrides)], on_event=self._on_event, say=self._say, verbose=self._verbose
        )
        opened.notes = self.notes
        return opened

    async def _pressed_rows(self, alone: Sequence[Answer]) -> list[Row]:
        """Run requests in an engine without prefix cache and with a KV cache that holds few of them.

        There, many requests that grow by several blocks are preempted, and must end as one that is alone.
        """
        request, sizes = alone[0].request, [num_tokens(answer.output) for answer in alone]
        size = sizes[0]
        if "max_tokens" in request.sampling:
            sampling = {**request.sampling, "max_tokens": _PRESSED_TOKENS, "ignore_eos": True}
            request, size = self.only_text(replace(request, sampling=sampling)), size + _PRESSED_TOKENS
        num_cached = max(2 * size, *sizes)
        overrides = small_cache_overrides(self.config, self._folder, num_cached)
        if overrides is None:
            return []
        self._say("without prefix cache, in a small KV cache")
        modes: dict[str, Check] = {"without prefix cache": "repeat", "preempted": "alone = batched"}
        try:
            async with self._open(self._overrides + overrides) as engine:
                runs = await engine.ask_at_once([answer.request for answer in alone])
                single = await engine.ask(request)
                many = await engine.ask_at_once([request] * min(2 * num_cached // size, _MAX_PRESSED))
                preempted = engine._engine.stages[0].execution_counters.get("preemptions", 0)
        except OmniError as error:
            return [Row(check=modes[mode], verdict="not checked", mode=mode, why=error.message) for mode in modes]
        rows = self.compare("repeat", alone, runs, mode="without prefix cache")
        if preempted:
            return rows + self.compare("alone = batched", [single] * len(many), many, mode="preempted")
        why = "the engine preempted no request"
        return [*rows, Row(check="alone = batched", verdict="not checked", mode="preempted", why=why)]

    async def tokenizer_rows(self, folder: Path) -> list[Row]:
        """Return the row of the first stage's ids for texts against those of the file in a checkpoint's folder.

        None if the stage does not tokenize, or the checkpoint has no file for it.
        """
        file, model, stage = folder / "tokenizer.json", folder / "tokenizer.model", self._engine.stages[0]
        assert self.reference is not None
        role = self.reference.family.role(stage.name)
        if role is None or role.makes != "text" or role.transcribes:
            return []
        if file.is_file():
            from tokenizers import Tokenizer

            own: Any = Tokenizer.from_file(str(file))
        elif model.is_file():
            from sentencepiece import SentencePieceProcessor

            own = SentencePieceProcessor(model_file=str(model))
        else:
            return []
        request = GenerateRequest(
            "tokenizer",
            text=TextOptions(raw=True, prompt_only=True, add_special_tokens=False),
            modalities=frozenset({"text"}),
        )
        for text in PROBES:
            answer = await self.ask(replace(request, prompt=text))
            if answer.text_output is None or answer.text_output.prompt is None:
                return []
            expected = str(own.encode(text, add_special_tokens=False).ids if file.is_file() else own.encode(text))
            if (got := str(list(answer.text_output.prompt.token_ids))) != expected:
                why = f"the engine reads {text!r} as other ids than the checkpoint's file"
                row = Row(check="tokenizer", stage=stage.name, verdict="different", why=why)
                return [replace_values(row, expected=expected, got=got)]
        return [Row(check="tokenizer", stage=stage.name, verdict="equal", why=stage.effective.get("tokenizer"))]


def _get_tokens(trace: StageTrace) -> EngineTokens:
    """Return the tokens of a stage, up to the last that leads to the speech, with the candidates that it noted."""
    token_ids = trace.output_token_ids or ()
    noted = trace.output_logprobs or [[(token_id, math.nan, None)] for token_id in token_ids]
    rows = [[(token_id, logprob) for token_id, logprob, _text in row] for row in noted[: trace.num_heard_tokens]]
    return make_tokens(rows, None if trace.output_codes is None else tuple(map(tuple, trace.output_codes)))


def num_tokens(output: EngineOutput) -> int:
    """Count the tokens of a request's prompt and answer in the first AR stage."""
    first = next(iter(output.tokens.values()), None)
    return 0 if first is None else (output.num_input_tokens or 0) + len(first.token_ids)


def small_cache_overrides(config: EngineConfig, folder: Path, num_tokens: int) -> tuple[str, ...] | None:
    """Return overrides of the first AR stage: no prefix cache, and a KV cache for `num_tokens` in all.

    None for a chain without an AR stage, and for a model whose cache has an unknown size.
    """
    stage = next((stage for stage in config.stages if isinstance(stage, ARStageConfig)), None)
    if stage is None:
        return None
    token_bytes = cache_bytes_per_token(stage_decoders(config, folder).get(stage.name, {}), config.dtype)
    if token_bytes is None:
        return None
    # vLLM reserves one block.
    block_size = stage.block_size or _BLOCK_SIZE
    num_blocks = -(-num_tokens // block_size) + 1
    return (
        f"{stage.name}.enable_prefix_caching=false",
        f"{stage.name}.block_size={block_size}",
        f"{stage.name}.max_model_len={num_blocks * block_size - block_size}",
        f"{stage.name}.kv_cache_memory_bytes={num_blocks * block_size * token_bytes // stage.num_ranks}",
    )


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
