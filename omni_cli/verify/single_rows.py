"""Rows of checks that look at single answers: seeds, limits, counts, and whether an input changes anything."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from omni_cli.models.scores import EngineOutput, Expected
from omni_cli.outputs import GenerateRequest
from omni_cli.verify.engine_runs import EngineRun
from omni_cli.verify.noise import SIDES, Noise
from omni_cli.verify_record import Check, DifferentPair, Row

# A sampled answer that would come again with this probability is no evidence about seeds.
_SURE = 1e-3


def seed_row(stage: str, outputs: Sequence[EngineOutput]) -> Row:
    """Judge sampled answers: two with one seed, which must be equal, and others, which must not all be the same."""
    first, again, *others = [output.tokens[stage] for output in outputs]
    request = outputs[0].request.request_id
    if first.token_ids != again.token_ids:
        why = "the same seed gave two different answers"
        return Row(check="seed", stage=stage, verdict="different", request=request, why=why)
    if any(other.token_ids != first.token_ids for other in others):
        return Row(check="seed", stage=stage, verdict="equal")
    if not np.isfinite(first.logprobs[:, 0]).any():
        why = "other seeds gave the same answer; without log-probabilities it cannot be told whether they should"
        return Row(check="seed", stage=stage, verdict="not checked", request=request, why=why)
    if np.exp(np.nansum(first.logprobs[:, 0])) > _SURE:
        why = "the model is so sure of its answer that another seed need not change it"
        return Row(check="seed", stage=stage, verdict="not checked", request=request, why=why)
    why = "other seeds gave the same answer at temperature 1"
    return Row(check="seed", stage=stage, verdict="different", request=request, why=why)


def noise_row(stage: str, outputs: Sequence[EngineOutput], noise: Noise | None) -> Row:
    """Judge what is denoised of the same answer: equal with one seed, different with others."""
    request = outputs[0].request.request_id
    limit = 0.0 if noise is None else SIDES * noise.arrays.get(stage, 0.0)
    first, again, *others = [output.arrays for output in outputs]
    if not _is_equal(first, again, limit):
        why = "the same seed gave two different outputs"
        return Row(check="seed", stage=stage, verdict="different", request=request, why=why)
    if all(_is_equal(first, other, 0.0) for other in others):
        why = "other seeds gave the same output"
        return Row(check="seed", stage=stage, verdict="different", request=request, why=why)
    return Row(check="seed", stage=stage, verdict="equal")


def limit_rows(stage: str, run: EngineRun, max_tokens: int) -> Iterator[Row]:
    """Judge an answer that a maximum of tokens ends."""
    text, name = run.text, run.request.request_id
    if run.result.error is not None or text is None:
        reason = "no text" if run.result.error is None else run.result.error.message
        yield Row(check="limits", stage=stage, verdict="different", request=name, why=f"max_tokens: {reason}")
    elif len(text.token_ids) != max_tokens or text.finish_reason != "length":
        why = "max_tokens must end the answer with finish_reason `length`"
        got = f"{len(text.token_ids)} tokens, {text.finish_reason}"
        expected = f"{max_tokens} tokens, length"
        yield Row(check="limits", stage=stage, verdict="different", request=name, expected=expected, got=got, why=why)


def stop_string(text: str) -> str | None:
    """Return a part of an answer to stop it by: from its middle, and not at its beginning."""
    middle = len(text) // 2
    candidates = (text[middle : middle + length] for length in (3, 2, 1))
    return next((part for part in candidates if part.strip() and text.find(part) > 0), None)


def stop_rows(stage: str, run: EngineRun, whole: str, stop: str) -> Iterator[Row]:
    """Judge an answer that a stop string ends, which is not part of it."""
    expected = whole[: whole.index(stop)]
    text, name = run.text, run.request.request_id
    if run.result.error is not None or text is None:
        reason = "no text" if run.result.error is None else run.result.error.message
        yield Row(check="limits", stage=stage, verdict="different", request=name, why=f"stop {stop!r}: {reason}")
    elif text.text != expected:
        yield broken("limits", stage, name, expected, text.text, f"the stop string {stop!r} is cut wrongly")
    elif text.finish_reason != "stop":
        why = f"finish_reason is `{text.finish_reason}` after a stop string, not `stop`"
        yield Row(check="limits", stage=stage, verdict="different", request=name, why=why)


def count_rows(stage: str, runs: Sequence[EngineRun], expected: Sequence[Expected | str]) -> Iterator[Row]:
    """Judge the counts of tokens: of an answer against its ids, of a prompt against the reference's tokenizer."""
    for number, run in enumerate(runs):
        if run.result.error is not None or not run.result.stages:
            continue
        trace = run.result.stages[0]
        reference = expected[number] if number < len(expected) else None
        num_input = reference.num_input_tokens if isinstance(reference, Expected) else None
        counts = {
            "output": (len(trace.output_token_ids or ()), trace.num_output_tokens),
            "input": (num_input, trace.num_input_tokens),
        }
        for what, (right, got) in counts.items():
            if right is not None and right != got:
                why = f"the count of {what} tokens is wrong"
                name = run.request.request_id
                yield Row(
                    check="limits", stage=stage, verdict="different", request=name,
                    expected=str(right), got=str(got), why=why,
                )  # fmt: skip


def depends_row(stage: str, request: GenerateRequest, one: EngineOutput, other: EngineOutput, message: str) -> Row:
    """Judge two answers whose inputs differ: to the last bit of their probabilities or pixels, they must not agree."""
    same_tokens = all(
        one.tokens[name].token_ids == other.tokens[name].token_ids
        and np.array_equal(one.tokens[name].logprobs[:, 0], other.tokens[name].logprobs[:, 0], equal_nan=True)
        for name in list(one.tokens)[:1]
    )
    same = same_tokens if one.tokens else _is_equal(one.arrays, other.arrays, 0.0)
    if not same:
        return Row(check="modalities", stage=stage, verdict="equal")
    return Row(check="modalities", stage=stage, verdict="different", request=request.request_id, why=message)


def joined_rows(stage: str, request: str, joined: np.ndarray, whole: np.ndarray) -> Iterator[Row]:
    """Judge the chunks of streamed audio against the output that they are part of."""
    if joined.shape != whole.shape or not np.array_equal(joined, whole):
        expected, got = f"{len(whole)} samples", f"{len(joined)} samples"
        why = "the audio chunks, joined, are not the audio"
        yield Row(
            check="streamed = whole", stage=stage, verdict="different", request=request,
            expected=expected, got=got, why=why,
        )  # fmt: skip


def broken(check: Check, stage: str, request: str, expected: str, got: str, why: str) -> Row:
    """Return the row of a text that is not what it must be."""
    position = next((at for at, pair in enumerate(zip(expected, got, strict=False)) if pair[0] != pair[1]), None)
    position = min(len(expected), len(got)) if position is None else position
    pair = DifferentPair(expected_text=expected, got_text=got)
    why = f"{why}, from character {position} on"
    return Row(check=check, stage=stage, verdict="different", request=request, why=why, pair=pair)


def _is_equal(a: Mapping[str, np.ndarray], b: Mapping[str, np.ndarray], limit: float) -> bool:
    return a.keys() == b.keys() and all(
        a[name].shape == b[name].shape
        and (np.array_equal(a[name], b[name]) or np.abs(a[name].astype(float) - b[name]).max() <= limit)
        for name in a
    )
