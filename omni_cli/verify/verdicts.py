"""Verdicts: an engine's tokens, log-probabilities and media against a reference, or against another run of it.

What counts as equal is measured: the reference runs in several ways (a wider type, another attention), and the
differences between them are its noise. An engine is a further way. Its largest difference may be `SIDES` times the
largest of the reference's own ways, and its mean difference `SIDES_OF_MEAN` times theirs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec
import numpy as np

from omni_cli.bench.kept_outputs import kept_outputs
from omni_cli.models.scores import EngineOutput, EngineTokens, Expected, TokenScores
from omni_cli.record import RATE
from omni_cli.stats.output_quality import get_quality
from omni_cli.verify_record import Check, DifferentPair, Row, Spread, Verdict

SIDES = 4.0
SIDES_OF_MEAN = 3.0
MIN_FOR_MEAN = 64
STREAMED_AUDIO_BOUND = 1e-3
"""The largest difference of streamed from whole audio, whose chunks are computed with limited context."""

_EPS = float(np.finfo(np.float32).eps)
_RANK: Mapping[Verdict, int] = {"not checked": 0, "equal": 1, "near tie": 2, "different": 3}
_MEASURES = ("psnr_db", "log_mel_distance_db")

Decode = Callable[[str, Sequence[int]], str | None]
"""Returns the text of token ids of a stage; None for a stage without text."""


@dataclass(frozen=True)
class Noise:
    """The reference's own differences: of log-probabilities by stage, of codes by stage, and of arrays by stage."""

    logprobs: Mapping[str, Spread] = field(default_factory=dict)
    codes: Mapping[str, float] = field(default_factory=dict)
    arrays: Mapping[str, float] = field(default_factory=dict)


def worst(rows: Iterable[Row]) -> Row:
    """Return the row with the worst verdict, the first of several."""
    return max(rows, key=lambda row: _RANK[row.verdict])


def get_noise(ways: Sequence[Sequence[Expected | str]]) -> Noise:
    """Measure the differences of the ways after the first from the first, over all requests."""
    logprobs: dict[str, list[list[np.ndarray]]] = {}
    codes: dict[str, float] = {}
    arrays: dict[str, float] = {}
    for number, way in enumerate(ways[1:]):
        for wide, own in zip(ways[0], way, strict=True):
            if isinstance(wide, str) or isinstance(own, str):
                continue
            for stage in wide.scores.keys() & own.scores.keys():
                a, b = wide.scores[stage], own.scores[stage]
                by_way = logprobs.setdefault(stage, [[] for _ in ways[1:]])
                by_way[number].append(_differences(a.logprobs, b.logprobs))
                if a.code_gaps is not None and b.code_gaps is not None and a.code_gaps.size:
                    codes[stage] = max(codes.get(stage, 0.0), float(_differences(a.code_gaps, b.code_gaps).max()))
            if wide.stage is not None:
                gaps = [_array_gap(wide.arrays[name], own.arrays[name]) for name in wide.arrays if name in own.arrays]
                arrays[wide.stage] = max(arrays.get(wide.stage, 0.0), *gaps, 0.0)
    return Noise({stage: _spread(by_way) for stage, by_way in logprobs.items()}, codes, arrays)


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
    differences = [_differences(tokens.logprobs, scores.logprobs) for _, tokens, scores in pairs]
    every = np.concatenate([item.ravel() for item in differences])
    floor = _EPS * max(float(np.nanmax(np.abs(scores.logprobs), initial=1.0)) for _, _, scores in pairs)
    spread = Spread(mean=float(every.mean()), max=float(every.max())) if every.size else Spread(mean=0.0, max=0.0)
    limit = SIDES * (own.max + floor)
    rows = [
        _judge_request(stage, output.request.request_id, tokens, scores, limit, SIDES * noise.codes.get(stage, 0.0))
        for output, tokens, scores in pairs
    ]
    row = worst(rows)
    if row.verdict != "different" and spread.max > limit:
        number = int(np.argmax([item.max(initial=0.0) for item in differences]))
        output, tokens, scores = pairs[number]
        position = int(np.argmax(differences[number].max(axis=1)))
        why = f"log-probabilities differ by up to {spread.max:.2g}, the reference's own by up to {own.max:.2g}"
        row = _token_row(stage, output.request.request_id, position, tokens, scores, "different", why)
    elif row.verdict != "different" and every.size >= MIN_FOR_MEAN and spread.mean > SIDES_OF_MEAN * own.mean + floor:
        why = f"log-probabilities differ by {spread.mean:.2g} on average, the reference's own by {own.mean:.2g}"
        row = Row(check="reference", stage=stage, verdict="different", why=why)
    same = np.concatenate([_same_top(tokens, scores) for _, tokens, scores in pairs])
    number = next((index for index, item in enumerate(pairs) if item[0].request.request_id == row.request), 0)
    return changed(
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
        limit = 0.0 if wide.is_exact else SIDES * (noise.arrays.get(wide.stage, 0.0) + _EPS)
        rows += [
            compare_arrays("reference", wide.stage, output, name, made, limit)
            for name in output.arrays
            if (made := expected.arrays.get(name)) is not None
        ]
    return [worst(rows)] if rows else []


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
    for one, other in zip(first, second, strict=True):
        for stage in stages:
            row = _compare_stage(check, stage, one, other, noise, first, second)
            if row is None:
                continue
            if row.verdict != "equal" and stage in one.tokens and row.got is not None:
                row = changed(row, **_run_texts(stage, one, other, decode))
            found[stage].append(row)
            if row.verdict != "equal":
                break
        else:
            found[stages[-1]] += _compare_media(check, stages[-1], one, other, noise, media_bound)
    return [changed(worst(rows), mode=mode) for rows in found.values() if rows]


def compare_arrays(
    check: Check, stage: str, output: EngineOutput, name: str, expected: np.ndarray, limit: float
) -> Row:
    """Return the row of an image, video or sound of `output`; it is equal if no value differs by more than `limit`."""
    got = output.arrays[name]
    shared = Row(check=check, stage=stage, verdict="equal", request=output.request.request_id)
    if expected.shape != got.shape:
        return changed(
            shared,
            verdict="different",
            expected=_shape(name, expected),
            got=_shape(name, got),
            why=f"{_shape(name, got)} instead of {_shape(name, expected)}",
            pair=_output_pair(name, expected, got, output.sample_rates.get(name, 0)),
        )
    gap = _array_gap(expected, got)
    if gap <= limit:
        return changed(shared, max_abs_diff=gap)
    measures = get_quality({name: expected}, {name: got})
    known = {measure: measures[measure] for measure in _MEASURES if measure in measures}
    allowed = "must be identical" if limit == 0 else f"may differ by {limit:.2g}"
    why = f"values differ by up to {gap:.3g}, and {allowed}"
    pair = _output_pair(name, expected, got, output.sample_rates.get(name, 0))
    return changed(shared, verdict="different", max_abs_diff=gap, why=why, pair=pair, **known)


def own_noise(pairs: Iterable[tuple[EngineTokens, EngineTokens]]) -> float:
    """Return the median over requests of the largest difference of log-probabilities while the tokens are equal."""
    largest = [float(gaps.max()) for a, b in pairs if (gaps := _gaps_until(a, b, _divergence_at(a, b))).size]
    return float(np.median(largest)) if largest else 0.0


def _judge_request(
    stage: str, request: str, tokens: EngineTokens, scores: TokenScores, limit: float, code_limit: float
) -> Row:
    """Judge the choice of tokens: the first difference that is no near tie, else the first near tie."""
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


def _compare_stage(
    check: Check,
    stage: str,
    one: EngineOutput,
    other: EngineOutput,
    noise: Noise | None,
    first: Sequence[EngineOutput],
    second: Sequence[EngineOutput],
) -> Row | None:
    a, b = one.tokens.get(stage), other.tokens.get(stage)
    if a is None or b is None:
        return None
    own = None if noise is None else noise.logprobs.get(stage)
    if own is not None:
        limit = SIDES * (own.max + _EPS * float(np.nanmax(np.abs(a.logprobs), initial=1.0)))
    else:
        both = [(x.tokens[stage], y.tokens[stage]) for x, y in zip(first, second, strict=True) if stage in x.tokens]
        limit = SIDES * own_noise(both)
    position = _divergence_at(a, b)
    gaps = _gaps_until(a, b, position)
    spread = Spread(mean=float(gaps.mean()), max=float(gaps.max())) if gaps.size else None
    shared = Row(check=check, stage=stage, verdict="equal", request=one.request.request_id, logprob_diff=spread)
    if own is not None and spread is not None and spread.max > limit:
        at = int(np.argmax(gaps))
        why = f"log-probabilities differ by up to {spread.max:.2g}, the reference's own by up to {own.max:.2g}"
        return changed(shared, verdict="different", position=at, why=why, noise=own)
    if position is None:
        return _codes_row(shared, a, b)
    ids = [side.token_ids[position] if position < len(side.token_ids) else None for side in (a, b)]
    margin = _margin(a, position, ids[1])
    verdict: Verdict = "near tie" if margin is not None and margin <= limit else "different"
    words = ["end" if token_id is None else str(token_id) for token_id in ids]
    return changed(
        shared, verdict=verdict, position=position, expected=words[0], got=words[1], margin=margin, noise=own
    )


def _codes_row(shared: Row, a: EngineTokens, b: EngineTokens) -> Row:
    """Compare the codes after the first of frames whose first codes are equal."""
    for position, (x, y) in enumerate(zip(a.codes or (), b.codes or (), strict=False)):
        if x != y:
            codebook = next(number for number, pair in enumerate(zip(x, y, strict=True)) if pair[0] != pair[1])
            got = {"expected": str(x[codebook]), "got": str(y[codebook])}
            return changed(shared, verdict="different", position=position, codebook=codebook, **got)
    return shared


def _compare_media(
    check: Check, stage: str, one: EngineOutput, other: EngineOutput, noise: Noise | None, media_bound: float
) -> list[Row]:
    request = one.request.request_id
    if one.arrays.keys() != other.arrays.keys():
        names = [", ".join(sorted(side.arrays)) or "nothing" for side in (one, other)]
        why = f"{names[1]} instead of {names[0]}"
        return [Row(check=check, stage=stage, verdict="different", request=request, why=why)]
    own = SIDES * noise.arrays.get(stage, 0.0) if noise is not None else 0.0
    return [compare_arrays(check, stage, other, name, array, own + media_bound) for name, array in one.arrays.items()]


def _margin(tokens: EngineTokens, position: int, token_id: int | None) -> float | None:
    """Return by how much a run prefers its own token to another one; None if it did not report that one."""
    if token_id is None or position >= len(tokens.candidates):
        return None
    (found,) = np.nonzero(tokens.candidates[position] == token_id)
    return float(tokens.logprobs[position, 0] - tokens.logprobs[position, found[0]]) if len(found) else None


def _divergence_at(a: EngineTokens, b: EngineTokens) -> int | None:
    if a.token_ids == b.token_ids:
        return None
    pairs = zip(a.token_ids, b.token_ids, strict=False)
    shorter = min(len(a.token_ids), len(b.token_ids))
    return next((position for position, (x, y) in enumerate(pairs) if x != y), shorter)


def _gaps_until(a: EngineTokens, b: EngineTokens, position: int | None) -> np.ndarray:
    """Return the differences of the chosen tokens' log-probabilities before a position."""
    end = min(len(a.logprobs), len(b.logprobs)) if position is None else position
    if not a.logprobs.size or not b.logprobs.size:
        return np.zeros(0)
    gaps: np.ndarray = np.abs(a.logprobs[:end, 0] - b.logprobs[:end, 0])
    return gaps


def _differences(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Return absolute differences of the positions that both have; 0 where either has no number."""
    num = min(len(a), len(b))
    with np.errstate(invalid="ignore"):
        gaps: np.ndarray = np.nan_to_num(np.abs(a[:num] - b[:num]), nan=0.0, posinf=0.0)
    return gaps


def _spread(by_way: Sequence[Sequence[np.ndarray]]) -> Spread:
    every = [np.concatenate([item.ravel() for item in way]) for way in by_way if way]
    return Spread(
        mean=max((float(item.mean()) for item in every if item.size), default=0.0),
        max=max((float(item.max()) for item in every if item.size), default=0.0),
    )


def _array_gap(a: np.ndarray, b: np.ndarray) -> float:
    """Return the largest difference of two arrays, in their shared part if they are not of one shape."""
    if a.shape != b.shape:
        a, b = (side[: min(len(a), len(b))] for side in (a, b))
    return float(np.abs(a.astype(np.float64) - b.astype(np.float64)).max()) if a.size and a.shape == b.shape else 0.0


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
    terms = np.exp(reference) * (reference - engine)
    return float(max(np.nan_to_num(terms, nan=0.0, posinf=0.0, neginf=0.0).sum(axis=1).mean(), 0.0))


def _output_pair(name: str, expected: np.ndarray, got: np.ndarray, rate: int) -> DifferentPair:
    rates = {name + RATE: np.array(rate)}
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


def _run_texts(stage: str, one: EngineOutput, other: EngineOutput, decode: Decode) -> dict[str, object]:
    texts = [decode(stage, side.tokens[stage].token_ids) for side in (one, other)]
    return {} if None in texts else {"pair": DifferentPair(expected_text=texts[0], got_text=texts[1])}


def changed(row: Row, **values: object) -> Row:
    """Return the row with other values."""

    return msgspec.structs.replace(row, **values)
