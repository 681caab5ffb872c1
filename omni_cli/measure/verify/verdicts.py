"""Verdicts on an engine's tokens, log-probabilities and media against its reference."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import msgspec
import numpy as np

from omni_cli.measure.bench.outputs import kept_outputs
from omni_cli.measure.verify.noise import (
    MIN_FOR_MEAN,
    ROUNDING,
    SIDES,
    Noise,
    array_gap,
    differences,
    sides_of_mean,
)
from omni_cli.models.scores import EngineOutput, EngineTokens, Expected, TokenScores
from omni_cli.records.record import RATE
from omni_cli.records.verify_record import Check, DifferentPair, MeanMax, Row, Verdict
from omni_cli.stats.output_quality import get_quality

_RANK: Mapping[Verdict, int] = {"not checked": 0, "equal": 1, "near tie": 2, "different": 3}
_MEASURES = ("psnr_db", "log_mel_distance_db")

Decode = Callable[[str, Sequence[int]], str | None]
"""Returns the text of token ids of a stage; None for a stage without text."""


def worst(rows: Iterable[Row]) -> Row:
    """Return the row with the worst verdict, the first of several."""
    return max(rows, key=lambda row: _RANK[row.verdict])


def worst_of_each(rows: Iterable[Row]) -> list[Row]:
    """Return the worst row of each check, stage and mode."""
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(row.name, []).append(row)
    return [worst(group) for group in groups.values()]


def judge_tokens(
    stage: str, outputs: Sequence[EngineOutput], expected: Sequence[Expected | str], noise: Noise, decode: Decode
) -> Row:
    """Return the `reference` row of an AR stage; `expected` are those of the widest way."""
    own = noise.logprobs.get(stage)
    pairs = [
        (output, output.tokens[stage], scores.scores[stage])
        for output, scores in zip(outputs, expected, strict=True)
        if not isinstance(scores, str) and stage in scores.scores and stage in output.tokens
    ]
    if not pairs or own is None:
        whys = dict.fromkeys(item for item in expected if isinstance(item, str))
        return Row(check="reference", stage=stage, verdict="not checked", why="; ".join(whys) or "no tokens")
    gaps = [differences(tokens.logprobs, scores.logprobs) for _, tokens, scores in pairs]
    every = np.concatenate([item[np.isfinite(item)] for item in gaps])
    # A token that cannot be chosen has no number to round.
    known = (scores.logprobs[np.isfinite(scores.logprobs)] for _, _, scores in pairs)
    floor = ROUNDING * max(float(np.abs(numbers).max(initial=1.0)) for numbers in known)
    spread = MeanMax(mean=float(every.mean()), max=float(every.max())) if every.size else None
    limit = SIDES * (own.max + floor)
    rows = [
        _judge_request(stage, output.request.request_id, tokens, scores, limit, SIDES * noise.codes.get(stage, 0.0))
        for output, tokens, scores in pairs
    ]
    row = worst(rows)
    if row.verdict != "different" and spread is not None and spread.max > limit:
        number = int(np.argmax([np.nanmax(item, initial=0.0) for item in gaps]))
        output, tokens, scores = pairs[number]
        position = int(np.argmax(np.nan_to_num(gaps[number]).max(axis=1)))
        why = f"log-probabilities differ by up to {spread.max:.2g}, the reference's own by up to {own.max:.2g}"
        row = _token_row(stage, output.request.request_id, position, tokens, scores, "different", why)
    elif spread is not None and row.verdict != "different" and _is_far(every, own.mean, floor):
        why = f"log-probabilities differ by {spread.mean:.2g} on average, the reference's own by {own.mean:.2g}"
        row = Row(check="reference", stage=stage, verdict="different", why=why)
    same = np.concatenate([_same_top(tokens, scores) for _, tokens, scores in pairs])
    number = next((index for index, item in enumerate(pairs) if item[0].request.request_id == row.request), 0)
    return replace_values(
        row,
        **_texts(row, stage, pairs[number][1], decode),
        logprob_diff=spread,
        noise=own,
        num_compared=int(every.size),
        kl=float(np.mean([_divergence(tokens, scores) for _, tokens, scores in pairs])),
        same_top=float(same.mean()) if same.size else None,
    )


def judge_arrays(outputs: Sequence[EngineOutput], ways: Sequence[Sequence[Expected | str]], noise: Noise) -> list[Row]:
    """Return the `reference` row of the stage that makes images or sound; none if the chain has no such stage."""
    rows: list[Row] = []
    for number, output in enumerate(outputs):
        wide = ways[0][number]
        if isinstance(wide, str) or wide.stage is None or not output.arrays:
            continue
        # Equality to the bit is with the reference in the engine's own type.
        expected = ways[1][number] if wide.is_exact and len(ways) > 1 else wide
        if isinstance(expected, str):
            continue
        limit = 0.0 if wide.is_exact else max(noise.get_array_limit(wide.stage), SIDES * ROUNDING)
        rows += [
            compare_arrays("reference", wide.stage, output, name, made, limit)
            for name in output.arrays
            if (made := expected.arrays.get(name)) is not None
        ]
    return [worst(rows)] if rows else []


def compare_arrays(
    check: Check, stage: str, output: EngineOutput, name: str, expected: np.ndarray, limit: float
) -> Row:
    """Return the row of an image, video or sound of `output`; it is equal if no value differs by more than `limit`."""
    got = output.arrays[name]
    shared = Row(check=check, stage=stage, verdict="equal", request=output.request.request_id)
    values: dict[str, object]
    if expected.shape != got.shape:
        shapes = _shape(name, expected), _shape(name, got)
        values = {"expected": shapes[0], "got": shapes[1], "why": f"{shapes[1]} instead of {shapes[0]}"}
    else:
        gap = array_gap(expected, got)
        if gap <= limit:
            return replace_values(shared, max_abs_diff=gap)
        measures = get_quality({name: expected}, {name: got})
        allowed = "must be identical" if limit == 0 else f"may differ by {limit:.2g}"
        values = {measure: measures[measure] for measure in _MEASURES if measure in measures}
        values |= {"max_abs_diff": gap, "why": f"values differ by up to {gap:.3g}, and {allowed}"}
    pair = _output_pair(name, expected, got, output.sample_rates.get(name, 0))
    return replace_values(shared, verdict="different", pair=pair, **values)


def _is_far(gaps: np.ndarray, own_mean: float, floor: float) -> bool:
    """Return True if the mean of many differences is beyond the reference's own."""
    return gaps.size >= MIN_FOR_MEAN and float(gaps.mean()) > sides_of_mean(gaps.size) * own_mean + floor


def _judge_request(
    stage: str, request: str, tokens: EngineTokens, scores: TokenScores, limit: float, code_limit: float
) -> Row:
    """Judge the choice of tokens: the first difference beyond a near tie, else the first near tie."""
    num = min(len(tokens.token_ids), len(scores.top_ids))
    found: list[Row] = []
    for position in np.flatnonzero(scores.top_ids[:num] != np.array(tokens.token_ids[:num])):
        verdict: Verdict = "near tie" if scores.gaps[position] <= limit else "different"
        found.append(_token_row(stage, request, int(position), tokens, scores, verdict, None))
    if num < len(tokens.token_ids):
        why = f"the reference ends after {num} tokens, the engine after {len(tokens.token_ids)}"
        found.append(Row(check="reference", stage=stage, verdict="different", request=request, position=num, why=why))
    if scores.code_ids is not None and scores.code_gaps is not None and scores.code_ids.size and tokens.codes:
        num_frames = min(len(scores.code_ids), len(tokens.codes))
        codes = np.array(tokens.codes[:num_frames])[:, 1:]
        for frame, code in np.argwhere(scores.code_ids[:num_frames] != codes):
            gap = float(scores.code_gaps[frame, code])
            row = Row(
                check="reference",
                stage=stage,
                verdict="near tie" if gap <= code_limit else "different",
                request=request,
                position=int(frame),
                codebook=int(code) + 1,
                expected=str(scores.code_ids[frame, code]),
                got=str(codes[frame, code]),
                margin=gap,
            )
            found.append(row)
    return worst(found) if found else Row(check="reference", stage=stage, verdict="equal", request=request)


def _token_row(
    stage: str,
    request: str,
    position: int,
    tokens: EngineTokens,
    scores: TokenScores,
    verdict: Verdict,
    why: str | None,
) -> Row:
    got, gap = float(scores.logprobs[position, 0]), float(scores.gaps[position])
    return Row(
        check="reference",
        stage=stage,
        verdict=verdict,
        request=request,
        position=position,
        expected=str(scores.top_ids[position]),
        got=str(tokens.token_ids[position]),
        expected_probability=float(np.exp(min(got + gap, 0.0))),
        got_probability=float(np.exp(got)),
        margin=gap if gap else float(scores.margins[position]),
        why=why,
    )


def _same_top(tokens: EngineTokens, scores: TokenScores) -> np.ndarray:
    num = min(len(tokens.token_ids), len(scores.top_ids))
    same: np.ndarray = scores.top_ids[:num] == np.array(tokens.token_ids[:num])
    return same


def _divergence(tokens: EngineTokens, scores: TokenScores) -> float:
    """Return the mean over positions of KL(reference, engine) over the engine's candidates after its own token."""
    num = min(len(tokens.logprobs), len(scores.logprobs))
    if num == 0:
        return 0.0
    # The engine's own token is usually also the first of its most likely ones.
    reference, engine = (
        side[:num, 1:] if side.shape[1] > 1 else side[:num] for side in (scores.logprobs, tokens.logprobs)
    )
    with np.errstate(invalid="ignore"):  # of a token that neither side can choose
        terms = np.exp(reference) * (reference - engine)
    return float(max(np.nan_to_num(terms, nan=0.0, posinf=0.0, neginf=0.0).sum(axis=1).mean(), 0.0))


def _output_pair(name: str, expected: np.ndarray, got: np.ndarray, rate: int) -> DifferentPair:
    rates = {name + RATE: np.array(rate)} if ".audio." in name else {}
    shown = [kept_outputs({name: side, **rates}, other) for side, other in ((expected, None), (got, {name: expected}))]
    return DifferentPair(expected=next(iter(shown[0]), None), got=next(iter(shown[1]), None))


def _shape(name: str, array: np.ndarray) -> str:
    if ".audio." in name:
        return f"{len(array)} samples"
    return "x".join(map(str, array.shape))


def _texts(row: Row, stage: str, tokens: EngineTokens, decode: Decode) -> dict[str, object]:
    """Return the tokens of a row as texts, and the whole answer with the expected token in the other's place."""
    if row.expected is None or row.got is None or row.position is None or row.codebook is not None:
        return {}
    texts = [decode(stage, [int(token_id)]) for token_id in (row.expected, row.got)]
    if None in texts:
        return {}
    before, whole = decode(stage, tokens.token_ids[: row.position]), decode(stage, tokens.token_ids)
    pair = DifferentPair(expected_text=f"{before}{texts[0]}", got_text=whole) if row.expected != row.got else None
    return {"expected": texts[0], "got": texts[1], "pair": pair}


def replace_values(row: Row, **values: object) -> Row:
    """Return the row with other values."""
    return msgspec.structs.replace(row, **values)
