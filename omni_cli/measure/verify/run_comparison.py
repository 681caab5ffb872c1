"""Answers of one subject against each other.

Two runs of the same requests: tokens, log-probabilities, codes and media of each stage. Single answers: seeds, limits,
counts, and whether an input changes anything.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from omni_cli.core.errors import OmniError
from omni_cli.measure.verify.noise import ROUNDING, SIDES, Noise, differences
from omni_cli.measure.verify.verdicts import Decode, compare_arrays, replace_values, worst
from omni_cli.models.scores import EngineOutput, EngineTokens
from omni_cli.records.verify_record import Check, DifferentPair, MeanMax, Row, Verdict
from omni_cli.requests.outputs import GenerateRequest
from omni_cli.stats.output_quality import first_difference

STREAMED_AUDIO_BOUND = 1e-3
"""The largest difference of streamed from whole audio, whose chunks are computed with limited context."""

# A sampled answer that would come again with this probability is no evidence about seeds.
_SURE = 1e-3
_NO_EFFECT = "the seed has no effect on this speech"


@dataclass(frozen=True, kw_only=True)
class Answer:
    """The answer to a request, or the `error` in its place; `failure` is its reason in a row.

    `num_output_tokens` and `num_input_tokens` are the counts that the subject reports, None if it reports none. The
    former must be one of `allowed_counts`, if there are any. `is_refused`: the subject does not take such a request.
    `spans` are the times of the parts of a transcript, in seconds, None without times.
    """

    request: GenerateRequest
    result: EngineOutput | None = None
    text: str | None = None
    finish_reason: str | None = None
    num_output_tokens: int | None = None
    num_input_tokens: int | None = None
    allowed_counts: tuple[int, ...] = ()
    has_logprobs: bool = True
    error: OmniError | None = None
    failure: str | None = None
    is_refused: bool = False
    spans: tuple[tuple[float, float], ...] | None = None

    @property
    def output(self) -> EngineOutput:
        """The tokens and media. Raises the request's error."""
        if self.error is not None:
            raise self.error
        assert self.result is not None
        return self.result


def compare_runs(
    check: Check,
    stages: Sequence[str],
    first: Sequence[EngineOutput],
    second: Sequence[EngineOutput],
    noise: Noise | None,
    decode: Decode,
    *,
    mode: str | None = None,
    media_bound: float = 0.0,
) -> list[Row]:
    """Return a row per stage for two runs of the same requests; stages after a difference are left out of a request.

    Without a reference, the noise is that of the runs: the median over the requests of their largest difference.
    """
    found: dict[str, list[Row]] = {stage: [] for stage in stages}
    pairs = list(zip(first, second, strict=True))
    for one, other in pairs:
        for stage in stages:
            a, b = one.tokens.get(stage), other.tokens.get(stage)
            if a is None or b is None:
                continue
            both = ((x.tokens[stage], y.tokens[stage]) for x, y in pairs if stage in x.tokens)
            own = None if noise is None else noise.logprobs.get(stage)
            equal = Row(check=check, stage=stage, verdict="equal", request=one.request.request_id)
            row = _compare_tokens(equal, a, b, own, own_noise(both) if own is None else own.max)
            if row.verdict != "equal" and stage in one.tokens and row.got is not None:
                row = replace_values(row, **_run_texts(row, stage, one, other, decode))
            found[stage].append(row)
            if row.verdict != "equal":
                break
        else:
            found[stages[-1]] += _compare_media(check, stages[-1], one, other, noise, media_bound)
    return [replace_values(worst(rows), mode=mode) for rows in found.values() if rows]


def own_noise(pairs: Iterable[tuple[EngineTokens, EngineTokens]]) -> float:
    """Return the median over requests of the largest difference of log-probabilities while the tokens are equal."""
    largest = [float(gaps.max()) for a, b in pairs if (gaps := _gaps_until(a, b, _divergence_at(a, b))).size]
    return float(np.median(largest)) if largest else 0.0


def _compare_tokens(equal: Row, a: EngineTokens, b: EngineTokens, own: MeanMax | None, largest: float) -> Row:
    """Return the row `equal`, or one with the first difference beyond `largest`, the noise of log-probabilities."""
    limit = SIDES * (largest + ROUNDING * float(np.nanmax(np.abs(a.logprobs), initial=1.0)))
    position = _divergence_at(a, b)
    gaps = _gaps_until(a, b, position)
    spread = MeanMax(mean=float(gaps.mean()), max=float(gaps.max())) if gaps.size else None
    shared = replace_values(equal, logprob_diff=spread)
    if own is not None and spread is not None and spread.max > limit:
        at = int(np.argmax(gaps))
        why = f"log-probabilities differ by up to {spread.max:.2g}, the reference's own by up to {own.max:.2g}"
        return replace_values(shared, verdict="different", position=at, why=why, noise=own)
    if position is None:
        return _codes_row(shared, a, b)
    ids = [side.token_ids[position] if position < len(side.token_ids) else None for side in (a, b)]
    margin = _margin(a, position, ids[1])
    verdict: Verdict = "near tie" if margin is not None and margin <= limit else "different"
    words = ["end" if token_id is None else str(token_id) for token_id in ids]
    return replace_values(
        shared, verdict=verdict, position=position, expected=words[0], got=words[1], margin=margin, noise=own
    )


def _codes_row(shared: Row, a: EngineTokens, b: EngineTokens) -> Row:
    """Compare the codes after the first of frames whose first codes are equal."""
    for position, (x, y) in enumerate(zip(a.codes or (), b.codes or (), strict=False)):
        if x != y:
            codebook = first_difference(x, y)
            got = {"expected": str(x[codebook]), "got": str(y[codebook])}
            return replace_values(shared, verdict="different", position=position, codebook=codebook, **got)
    return shared


def _compare_media(
    check: Check, stage: str, one: EngineOutput, other: EngineOutput, noise: Noise | None, media_bound: float
) -> list[Row]:
    request = one.request.request_id
    if one.arrays.keys() != other.arrays.keys():
        names = [", ".join(sorted(side.arrays)) or "nothing" for side in (one, other)]
        return [different_row(check, stage, request, f"{names[1]} instead of {names[0]}")]
    own = noise.get_array_limit(stage) if noise is not None else 0.0
    return [compare_arrays(check, stage, other, name, array, own + media_bound) for name, array in one.arrays.items()]


def _margin(tokens: EngineTokens, position: int, token_id: int | None) -> float | None:
    """Return by how much a run prefers its own token to another one; None if it did not report that one."""
    if token_id is None or position >= len(tokens.candidates):
        return None
    (found,) = np.nonzero(tokens.candidates[position] == token_id)
    return float(tokens.logprobs[position, 0] - tokens.logprobs[position, found[0]]) if len(found) else None


def _divergence_at(a: EngineTokens, b: EngineTokens) -> int | None:
    return None if a.token_ids == b.token_ids else first_difference(a.token_ids, b.token_ids)


def _gaps_until(a: EngineTokens, b: EngineTokens, position: int | None) -> np.ndarray:
    """Return the differences of the chosen tokens' log-probabilities before a position."""
    if not a.logprobs.size or not b.logprobs.size:
        return np.zeros(0)
    gaps = differences(a.logprobs[:position, 0], b.logprobs[:position, 0])
    finite: np.ndarray = gaps[np.isfinite(gaps)]
    return finite


def _run_texts(row: Row, stage: str, one: EngineOutput, other: EngineOutput, decode: Decode) -> dict[str, object]:
    """Return a row's tokens as texts, and both whole answers."""
    sides = [side.tokens[stage].token_ids for side in (one, other)]
    texts = [decode(stage, token_ids) for token_ids in sides]
    if None in texts or row.position is None or row.codebook is not None:
        return {}
    words = [decode(stage, token_ids[row.position : row.position + 1]) or "end" for token_ids in sides]
    pair = DifferentPair(expected_text=texts[0], got_text=texts[1])
    return {"expected": words[0], "got": words[1], "pair": pair}


def seed_row(stage: str, answers: Sequence[Answer]) -> Row:
    """Judge sampled answers: two with one seed, which must be equal, and others, which must not all be the same."""
    first, again, *others = [answer.output.tokens[stage] for answer in answers]
    request = answers[0].request.request_id
    if first.token_ids != again.token_ids:
        return different_row("seed", stage, request, "the same seed gave two different answers")
    if any(other.token_ids != first.token_ids for other in others):
        return Row(check="seed", stage=stage, verdict="equal")
    why = None
    if not np.isfinite(first.logprobs[:, 0]).any():
        why = "other seeds gave the same answer; without log-probabilities it cannot be told whether they should"
    elif np.exp(np.nansum(first.logprobs[:, 0])) > _SURE:
        why = "the model is so sure of its answer that another seed need not change it"
    if why is not None:
        return Row(check="seed", stage=stage, verdict="not checked", request=request, why=why)
    return different_row("seed", stage, request, "other seeds gave the same answer at temperature 1")


def noise_row(stage: str, answers: Sequence[Answer], noise: Noise | None, *, may_ignore_seeds: bool) -> Row:
    """Judge what is denoised of the same answer: equal with one seed, different with others."""
    request = answers[0].request.request_id
    limit = 0.0 if noise is None else noise.get_array_limit(stage)
    first, again, *others = [answer.output.arrays for answer in answers]
    if not _is_equal(first, again, limit):
        return different_row("seed", stage, request, "the same seed gave two different outputs")
    if all(_is_equal(first, other, 0.0) for other in others):
        if may_ignore_seeds:
            return Row(check="seed", stage=stage, verdict="not checked", request=request, why=_NO_EFFECT)
        return different_row("seed", stage, request, "other seeds gave the same output")
    return Row(check="seed", stage=stage, verdict="equal")


def limit_rows(stage: str, answer: Answer, max_tokens: int) -> Iterator[Row]:
    """Judge an answer that a maximum of tokens ends."""
    name = answer.request.request_id
    if answer.failure is not None or answer.text is None:
        yield different_row("limits", stage, name, f"max_tokens: {answer.failure or 'no text'}")
    elif answer.finish_reason != "length" or answer.num_output_tokens not in (None, max_tokens):
        why = "max_tokens must end the answer with finish_reason `length`"
        got = f"{answer.num_output_tokens} tokens, {answer.finish_reason}"
        yield different_row("limits", stage, name, why, expected=f"{max_tokens} tokens, length", got=got)


def stop_string(text: str) -> str | None:
    """Return a part of an answer to stop it by: from its middle, and not at its beginning."""
    middle = len(text) // 2
    candidates = (text[middle : middle + length] for length in (3, 2, 1))
    return next((part for part in candidates if part.strip() and text.find(part) > 0), None)


def stop_rows(stage: str, answer: Answer, whole: str, stop: str) -> Iterator[Row]:
    """Judge an answer that a stop string ends, which is not part of it."""
    expected, name = whole[: whole.index(stop)], answer.request.request_id
    if answer.failure is not None or answer.text is None:
        yield different_row("limits", stage, name, f"stop {stop!r}: {answer.failure or 'no text'}")
    elif answer.text != expected:
        yield text_row("limits", stage, name, expected, answer.text, f"the stop string {stop!r} is cut wrongly")
    elif answer.finish_reason != "stop":
        why = f"finish_reason is `{answer.finish_reason}` after a stop string, not `stop`"
        yield different_row("limits", stage, name, why)


def count_rows(stage: str, answer: Answer, names: tuple[str, str], num_prompt: int | None) -> Iterator[Row]:
    """Judge the counts of tokens: of an answer against its ids, of a prompt against `num_prompt` of the reference."""
    prompt = () if num_prompt is None else (num_prompt,)
    counts = ((answer.num_output_tokens, answer.allowed_counts), (answer.num_input_tokens, prompt))
    for name, (got, allowed) in zip(names, counts, strict=True):
        if allowed and got is not None and got not in allowed:
            request = answer.request.request_id
            yield different_row("limits", stage, request, f"{name} is wrong", expected=str(allowed[0]), got=str(got))


def depends_row(stage: str, answer: Answer, other: Answer, message: str) -> Row:
    """Judge answers to different inputs: to the last bit of their probabilities or pixels, they must not agree."""
    one, two = answer.output, other.output
    same_tokens = all(
        one.tokens[name].token_ids == two.tokens[name].token_ids
        and np.array_equal(one.tokens[name].logprobs[:, 0], two.tokens[name].logprobs[:, 0], equal_nan=True)
        for name in list(one.tokens)[:1]
    )
    same = same_tokens if one.tokens else _is_equal(one.arrays, two.arrays, 0.0)
    if not same:
        return Row(check="modalities", stage=stage, verdict="equal")
    return different_row("modalities", stage, answer.request.request_id, message)


def different_row(check: Check, stage: str, request: str, why: str, **values: object) -> Row:
    """Return the row of a request whose answer is wrong."""
    return replace_values(Row(check=check, stage=stage, verdict="different", request=request, why=why), **values)


def text_row(check: Check, stage: str, request: str, expected: str, got: str, why: str) -> Row:
    """Return the row of a text that is not what it must be."""
    position = first_difference(*([*map(ord, text)] for text in (expected, got)))
    pair = DifferentPair(expected_text=expected, got_text=got)
    return different_row(check, stage, request, f"{why}, from character {position} on", pair=pair)


def _is_equal(a: Mapping[str, np.ndarray], b: Mapping[str, np.ndarray], limit: float) -> bool:
    return a.keys() == b.keys() and all(
        a[name].shape == b[name].shape
        and (np.array_equal(a[name], b[name]) or np.abs(a[name].astype(float) - b[name]).max() <= limit)
        for name in a
    )
