"""The checks of `omni verify`: each compares answers of one subject with each other, `reference` with the family's."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path

import numpy as np

from omni_cli.measure.verify.default_requests import another_medium, longer, with_media
from omni_cli.measure.verify.noise import get_noise
from omni_cli.measure.verify.run_comparison import (
    Answer,
    count_rows,
    depends_row,
    limit_rows,
    noise_row,
    seed_row,
    stop_rows,
    stop_string,
)
from omni_cli.measure.verify.subject import Subject
from omni_cli.measure.verify.tokens import get_probabilities, make_decoder
from omni_cli.measure.verify.verdicts import judge_arrays, judge_tokens, replace_values, worst, worst_of_each
from omni_cli.models.scores import EngineTokens, Expected
from omni_cli.records.verify_record import Check, Row, TokenProbability, Verdict
from omni_cli.requests.contents import Media, TranscriptionOptions
from omni_cli.requests.media.audio import read_speech
from omni_cli.requests.outputs import GenerateRequest

Span = tuple[float, float]
_FEW_TOKENS = 3
_STEP_S = 0.1
# Of the loudest step; quieter is a pause.
_LEVEL = 0.05
# Times that a model writes are this exact.
_MARGIN_S = 0.3
# Of speech that the reference has words for: a short word may be lost without a fault of the joining.
_MAX_LOST_S = 0.5
# More than one window of Whisper, which ends in an open sentence.
_LONG_S, _LEAD_S = 36.0, 2.6


def make_long_request() -> GenerateRequest:
    """Return our sentences, one after another, as a recording of more than one window."""
    rate = read_speech()[0][1]
    sentences = np.concatenate([samples for samples, _ in read_speech()])
    lead = np.zeros(int(_LEAD_S * rate), np.float32)
    samples = np.concatenate([lead, *[sentences] * (int(_LONG_S * rate / len(sentences)) + 1)])[: int(_LONG_S * rate)]
    options = TranscriptionOptions(language="en", timestamps=True, asked=True)
    return GenerateRequest("long speech", media=Media(audio=((samples, rate),)), transcription=options)


def find_lost_speech(sound: tuple[np.ndarray, int], spans: Sequence[Span]) -> tuple[float, float]:
    """Return the seconds of speech, by energy, that are in none of the spans, and those of all speech."""
    samples, rate = sound
    step = max(1, round(_STEP_S * rate))
    steps = samples[: len(samples) // step * step].reshape(-1, step)
    loudness = np.sqrt(np.square(steps, dtype=np.float32).mean(axis=1))
    is_speech = loudness > _LEVEL * loudness.max(initial=0.0)
    middle_s = (np.arange(len(steps)) + 0.5) * _STEP_S
    is_heard = np.zeros(len(steps), bool)
    for start_s, end_s in spans:
        is_heard |= (middle_s > start_s - _MARGIN_S) & (middle_s < end_s + _MARGIN_S)
    return float((is_speech & ~is_heard).sum() * _STEP_S), float(is_speech.sum() * _STEP_S)


def judge_coverage(stage: str, answers: Sequence[Answer], expected: Sequence[Expected | str]) -> list[Row]:
    """Return a row for each answer with times, beside the reference's own transcript of the same sound."""
    rows = []
    for answer, own in zip(answers, expected, strict=True):
        if answer.spans is None or isinstance(own, str) or own.spans is None:
            continue
        sound = answer.request.media.audio[0]
        lost_s, speech_s = find_lost_speech(sound, answer.spans)
        own_s, _ = find_lost_speech(sound, own.spans)
        verdict: Verdict = "different" if lost_s > own_s + _MAX_LOST_S else "equal"
        why = f"{lost_s:.1f} of {speech_s:.1f} s of speech have no words, {own_s:.1f} s in the reference's transcript"
        rows.append(Row(check="coverage", stage=stage, verdict=verdict, request=answer.request.request_id, why=why))
    return rows


class Checks:
    """Runs the checks; `rows` and `probabilities` have those that are done, also after an early end."""

    def __init__(
        self,
        subject: Subject,
        requests: Sequence[GenerateRequest],
        folder: Path,
        say: Callable[[str], None],
        *,
        are_defaults: bool,
    ) -> None:
        """Exchange files with the reference in `folder`; `say` shows progress. Of requests that `are_defaults`, those
        that the subject does not take are dropped."""
        self.rows: list[Row] = []
        self.probabilities: list[TokenProbability] = []
        self.subject, self._requests, self._are_defaults = subject, requests, are_defaults
        self._folder, self._say = folder, say
        self._num_prompt_tokens: dict[str, int | None] = {}

    async def run(self) -> None:
        """Run all checks. Raises `OmniError` for a subject that does not start, or does not answer a request."""
        subject = self.subject
        async with subject:
            self._requests, rows = await subject.prepare(self._requests, are_defaults=self._are_defaults)
            self.rows += rows
            self._alone = await self._ask("alone", self._requests)
            for answer in self._alone:
                if answer.error is not None:
                    raise answer.error
            self._judged = [*self._alone, *await self._hear_long_speech()]
            # With low memory, the subject and its reference are never in memory at once.
            is_apart = subject.reference is not None and subject.reference.low_memory
            if not is_apart:
                await self._compare_with_reference()
                await self._compare_answers()
        if is_apart:
            await self._compare_with_reference()
            async with subject:
                await self._compare_answers()
        async with aclosing(subject.mode_rows(self._alone)) as modes:
            async for rows in modes:
                self._add(rows)

    async def _hear_long_speech(self) -> list[Answer]:
        """Return the answer to a recording of several windows, of a subject that hears ours and tells times."""
        is_asked = self.subject.reference is not None and self._are_defaults
        if not is_asked or not all(len(item.media.audio) == 1 and item.transcription.asked for item in self._requests):
            return []
        (answer,) = await self._ask("long speech", [make_long_request()])
        return [] if answer.error is not None or answer.spans is None else [answer]

    async def _compare_answers(self) -> None:
        checks: Mapping[Check, Callable[[], Awaitable[None]]] = {
            "alone = batched": self._check_batch,
            "streamed = whole": self._check_streaming,
            "repeat": self._repeat,
            "seed": self._seeds,
            "limits": self._limits,
            "modalities": self._modalities,
        }
        for name in self.subject.checks:
            if name in self.subject.unchecked:
                why = self.subject.unchecked[name]
                self.rows.append(Row(check=name, stage=self.subject.stage, verdict="not checked", why=why))
            else:
                await checks[name]()

    async def _ask(self, what: str, requests: Sequence[GenerateRequest]) -> list[Answer]:
        """Send requests one after another."""
        answers = []
        for number, request in enumerate(requests, start=1):
            self._say(f"{what}: request {number} of {len(requests)}")
            answers.append(await self.subject.ask(request))
        return answers

    async def _compare_with_reference(self) -> None:
        subject, reference = self.subject, self.subject.reference
        if reference is None:
            why = subject.unchecked["reference"]
            self.rows.append(Row(check="reference", stage=subject.stage, verdict="not checked", why=why))
            return
        outputs, unknown = subject.to_reference(self._judged)
        if not outputs:
            self.rows += unknown
            return
        found = await reference.run(outputs, self._folder, self._say)
        if found.why is not None:
            row = Row(check="reference", stage=reference.row_stage, verdict="not checked", why=found.why)
            self.rows += [*unknown, row]
            return
        first = reference.config.stages[0].name
        for number, output in enumerate(outputs):
            if (ids := found.token_ids.get(output.request.request_id)) is not None:
                outputs[number] = replace(output, tokens={first: EngineTokens.without_logprobs(ids)})
        wide, decode = found.results[0], make_decoder(Path(reference.folder), reference.config)
        noise = subject.noise = get_noise(found.results)
        for stage in reference.token_stages:
            row = judge_tokens(stage, outputs, wide, noise, decode)
            if not self._alone[0].has_logprobs and row.verdict != "not checked":
                row = replace_values(row, why="by the text: the server gives no log-probabilities")
            self.rows.append(replace_values(row, stage=reference.row_stage or stage))
        self.rows += [*judge_arrays(outputs, found.results, noise), *unknown]
        expected = dict(zip((output.request.request_id for output in outputs), wide, strict=True))
        timed = [answer for answer in self._judged if answer.request.request_id in expected]
        self._add(judge_coverage(subject.stage, timed, [expected[answer.request.request_id] for answer in timed]))
        for output, item in zip(outputs, wide, strict=True):
            name = output.request.request_id
            if isinstance(item, str):
                self.rows.append(Row(check="reference", verdict="not checked", request=name, why=item))
            else:
                self._num_prompt_tokens[name] = item.num_input_tokens
        self.probabilities = get_probabilities(outputs, wide, decode)

    async def _check_batch(self) -> None:
        self._say("all requests at once")
        rows = self.subject.compare("alone = batched", self._alone, await self.subject.ask_at_once(self._requests))
        self._say("in another order, beside long requests")
        beside = [longer(request) for request in self._requests[:2] if request.prompt]
        answers = await self.subject.ask_at_once([*beside, *self._requests[::-1]])
        self._add([*rows, *self.subject.compare("alone = batched", self._alone, answers[len(beside) :][::-1])])

    async def _check_streaming(self) -> None:
        self._say("streamed")
        self._add(await self.subject.stream_rows(self._alone))

    async def _repeat(self) -> None:
        answers = await self._ask("the same requests again", self._requests)
        self._add(self.subject.compare("repeat", self._alone, answers))

    async def _seeds(self) -> None:
        """Sample in the first stage, and denoise the same answer, with one seed twice and with others."""
        subject, request = self.subject, self._requests[0]
        seeds = (request.seed, request.seed, request.seed + 1, request.seed + 2)
        if subject.sampling_stage is not None and "max_tokens" not in request.diffusion:
            sampling = {**request.sampling, "temperature": 1.0, "top_p": 1.0, "top_k": 0}
            sampled = subject.only_text(replace(request, sampling=sampling))
            answers = await self._ask("seeds", [replace(sampled, seed=seed) for seed in seeds])
            self.rows.append(_failed_row(subject.sampling_stage, answers) or seed_row(subject.sampling_stage, answers))
        if subject.denoising_stage is not None:
            stage = subject.denoising_stage
            answers = await self._ask("seeds", [replace(request, seed=seed) for seed in seeds])
            row = _failed_row(stage, answers)
            self.rows.append(row or noise_row(stage, answers, subject.noise, may_ignore_seeds=subject.may_ignore_seeds))

    async def _limits(self) -> None:
        """Check the number of choices, the counts of tokens, the maximum of tokens and a stop string of a text."""
        subject, stage = self.subject, self.subject.stage
        texts = [answer for answer in self._alone if answer.text is not None]
        if not texts:
            return
        self._say("limits")
        self.rows += await subject.choice_rows(self._requests[0])
        rows = [Row(check="limits", stage=stage, verdict="equal")]
        for each in self._alone:
            rows += count_rows(stage, each, subject.count_names, self._num_prompt_tokens.get(each.request.request_id))
        whole = next(filter(_is_long, texts), None)
        if whole is not None:
            text, request, sampling = whole.text or "", subject.only_text(whole.request), whole.request.sampling
            few = await subject.ask(replace(request, sampling={**sampling, "max_tokens": _FEW_TOKENS}))
            rows += [*limit_rows(stage, few, _FEW_TOKENS), *count_rows(stage, few, subject.count_names, None)]
            if not request.transcription.asked and (stop := stop_string(text)) is not None:
                stopped = await subject.ask(replace(request, sampling={**sampling, "stop": [stop]}))
                rows += stop_rows(stage, stopped, text, stop)
        self._add([worst(rows)])

    async def _modalities(self) -> None:
        """Check that an answer depends on each medium that it comes with, and on the order of two images.

        The prompts are long enough to fill blocks of the prefix cache behind the media, and the other medium of a
        request is as large as its own: a cache that takes one for the other changes the answer, which a salt tells.
        """
        self._say("modalities")
        rows: list[Row] = []
        subject = self.subject
        for field in subject.media:
            request = next((item for item in self._requests if len(getattr(item.media, field)) == 1), None)
            if request is None:
                continue
            others = [with_media(request, field, another_medium(request, field)), request]
            if subject.can_omit_media:
                others.append(with_media(request, field))
            if subject.caches_prompts:
                others = [longer(item) for item in (*others, replace(request, cache_salt="omni-verify"))]
            answers = await self._ask("modalities", others)
            if any(answer.is_refused for answer in answers):
                continue
            medium = field.removesuffix("s")
            rows.append(depends_row(subject.stage, answers[0], answers[1], f"another {medium} changes nothing"))
            if subject.can_omit_media:
                rows.append(depends_row(subject.stage, answers[2], answers[1], f"the {medium} changes nothing"))
            if subject.caches_prompts:
                rows += self.subject.compare("modalities", answers[3:], answers[1:2])
        request = next((item for item in self._requests if len(item.media.images) > 1), None)
        if request is not None:
            request = longer(request) if subject.caches_prompts else request
            turned = with_media(request, "images", *request.media.images[::-1])
            one, other = await self._ask("modalities", [request, turned])
            if not (one.is_refused or other.is_refused):
                rows.append(depends_row(subject.stage, one, other, "the order of the images changes nothing"))
        if rows:
            self._add([worst(rows)])

    def _add(self, rows: Sequence[Row]) -> None:
        """Add a row per check, stage and mode: the worst."""
        self.rows += worst_of_each(rows)


def _failed_row(stage: str, answers: Sequence[Answer]) -> Row | None:
    why = next((answer.failure for answer in answers if answer.failure is not None), None)
    return None if why is None else Row(check="seed", stage=stage, verdict="not checked", why=why)


def _is_long(answer: Answer) -> bool:
    """Return True if an answer is long enough to end it earlier."""
    num_tokens = answer.num_output_tokens
    return len(answer.text or "") > 8 if num_tokens is None else bool(answer.text) and num_tokens > _FEW_TOKENS
