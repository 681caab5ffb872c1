"""The checks of a running server: each compares its answers with each other, `reference` those with transformers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from omni_cli.errors import OmniError
from omni_cli.models.scores import EngineOutput
from omni_cli.openai_api.client import Client, RequestFailure
from omni_cli.outputs import GenerateRequest
from omni_cli.verify.default_requests import another_medium, longer
from omni_cli.verify.run_comparison import STREAMED_AUDIO_BOUND, compare_runs
from omni_cli.verify.server_client import MEDIA, TEXT, ServerRun, VerifyClient, Vocabulary, to_output
from omni_cli.verify.server_reference import ServerReference
from omni_cli.verify.single_rows import broken, depends_row, noise_row, seed_row, stop_string
from omni_cli.verify.verdicts import changed, worst, worst_of_each
from omni_cli.verify_record import Check, Row, TokenProbability

_MAX_TOKENS = 3
_ROUNDING = {"speech": STREAMED_AUDIO_BOUND, "images": 1.0}
"""Differences that batching may make: of a sample, and one of a pixel's 256 values."""
_TEXT_ROUTES = ("chat", "completions")
# Fields that a server may refuse or not know, and the checks that it then lacks.
_OPTIONAL = ("seed", "logprobs", "top_logprobs", "return_token_ids")


class ServerDied(OmniError):
    """The server answers no more."""


@dataclass(frozen=True)
class ServerPlan:
    """The route and requests to verify. `reference` is None without weights."""

    route: str
    model: str
    requests: tuple[GenerateRequest, ...]
    are_defaults: bool
    reference: ServerReference | None = None


class ServerChecks:
    """Runs the checks; `rows` has those that are done, also after an early end."""

    def __init__(self, plan: ServerPlan, client: Client, folder: Path, say: Callable[[str], None]) -> None:
        """Exchange files with the reference in `folder`; `say` shows progress."""
        self.plan = plan
        self.rows: list[Row] = []
        self.probabilities: list[TokenProbability] = []
        self._http, self._folder, self._say = client, folder, say
        self._words = Vocabulary()
        self._stage = TEXT if plan.route in (*_TEXT_ROUTES, "transcriptions") else MEDIA

    async def run(self) -> None:
        """Run all checks. Raises `OmniError` for a server that answers none, or no more."""
        async with self._http as http:
            self._client = VerifyClient(http, self.plan.route, self.plan.model)
            self._requests = await self._usable()
            self._say("alone")
            alone = await self._answers(await self._client.alone(self._requests))
            outputs = [to_output(run, self._words) for run in alone]
            await self._reference(alone)
            await self._batched(outputs)
            await self._repeat(outputs)
            await self._seeds()
            if self._stage == TEXT:
                await self._streamed(alone)
            if self.plan.route in _TEXT_ROUTES:
                await self._choices()
                await self._limits(alone)
            elif self._stage == TEXT:
                why = "transcription has no stop strings and no maximum of tokens"
                self.rows.append(Row(check="limits", stage=TEXT, verdict="not checked", why=why))
            await self._modalities()

    async def _usable(self) -> tuple[GenerateRequest, ...]:
        """Find the fields that the server refuses, and drop our own requests with media that it refuses."""
        first = self.plan.requests[0]
        client = self._client
        run = await client.send(first)
        if _is_refused(run):
            client.without = dict.fromkeys(_OPTIONAL, run.failure.message if run.failure else "")
            run = await client.send(first)
            for name in _OPTIONAL if run.failure is None else ():
                refused = client.without
                client.without = {other: why for other, why in refused.items() if other != name}
                tried = await client.send(first)
                if tried.failure is not None:
                    client.without = {**refused, name: tried.failure.message}
        if run.failure is not None:
            raise _error(run.failure)
        usable = [first]
        for request in self.plan.requests[1:]:
            has_media = bool(request.images or request.audio or request.videos)
            if self.plan.are_defaults and has_media and self.plan.route != "transcriptions":
                run = await self._client.send(request)
                if _is_refused(run):
                    assert run.failure is not None
                    medium = "images" if request.images else "audio"
                    why = f"{run.failure.kind}: {run.failure.message}"
                    row = Row(check="modalities", stage=TEXT, verdict="not checked", mode=medium, why=why)
                    self.rows += [] if any(item.name == row.name for item in self.rows) else [row]
                    continue
            usable.append(request)
        return tuple(usable)

    async def _answers(self, runs: Sequence[ServerRun]) -> list[ServerRun]:
        """Return the runs. Raises `OmniError` for the first that failed: these requests have been answered before."""
        for run in runs:
            if run.failure is not None:
                raise _error(run.failure, run.request.request_id)
        return list(runs)

    async def _reference(self, alone: Sequence[ServerRun]) -> None:
        if self.plan.reference is None:
            why = "no weights: add `--model DIR`"
            self.rows.append(Row(check="reference", stage=self._stage, verdict="not checked", why=why))
            return
        rows, self.probabilities = await self.plan.reference.judge(alone, self._folder, self._say)
        self.rows += rows

    async def _batched(self, alone: Sequence[EngineOutput]) -> None:
        self._say("all requests at once")
        together = await self._answers(await self._client.at_once(self._requests))
        rows = self._compare("alone = batched", alone, together)
        self._say("in another order, beside long requests")
        beside = [longer(request) for request in self._requests[:2] if request.prompt]
        reverse = await self._client.at_once([*beside, *self._requests[::-1]])
        rows += self._compare("alone = batched", alone, await self._answers(reverse[len(beside) :][::-1]))
        self._add(rows)

    async def _repeat(self, alone: Sequence[EngineOutput]) -> None:
        self._say("the same requests again")
        self._add(self._compare("repeat", alone, await self._answers(await self._client.alone(self._requests))))

    async def _streamed(self, alone: Sequence[ServerRun]) -> None:
        self._say("streamed")
        rows: list[Row] = [Row(check="streamed = whole", stage=TEXT, verdict="equal")]
        streamed = [whole for whole in alone if whole.request.task != "translate"]
        if not streamed:
            why = "the route of translations has no streams"
            rows = [Row(check="streamed = whole", stage=TEXT, verdict="not checked", why=why)]
        for whole in streamed:
            run = await self._client.send(whole.request, stream=True, stream_options={"include_usage": True})
            name = whole.request.request_id
            if run.failure is not None and run.failure.kind.startswith("HTTP 4"):
                run = await self._client.send(whole.request, stream=True)
            if run.failure is not None:
                why = f"{run.failure.kind}: {run.failure.message}"
                rows.append(_different("streamed = whole", name, why))
            elif wrong := [text for text in run.texts if text != whole.text]:
                rows.append(broken("streamed = whole", TEXT, name, whole.text, wrong[0], "the streamed text differs"))
            elif self.plan.route not in _TEXT_ROUTES:
                continue  # a whole transcript has neither
            elif run.finish_reason != whole.finish_reason:
                why = f"streamed, finish_reason is `{run.finish_reason}`; whole, it is `{whole.finish_reason}`"
                rows.append(_different("streamed = whole", name, why))
            elif run.completion_tokens not in (None, whole.completion_tokens):
                why = f"streamed, usage counts {run.completion_tokens} tokens; whole, {whole.completion_tokens}"
                rows.append(_different("streamed = whole", name, why))
        self._add(rows)

    async def _choices(self) -> None:
        """Check that a server that accepts `n` returns as many choices."""
        request = self._requests[0]
        run = await self._client.send(replace(request, sampling={**request.sampling, "temperature": 1.0}), n=2)
        row = Row(check="limits", stage=TEXT, verdict="equal", mode="n=2")
        if run.failure is not None:
            row = changed(row, verdict="not checked", why=f"{run.failure.kind}: {run.failure.message}")
        elif len(run.texts) != 2:
            why = f"the server returned {len(run.texts)} of 2 choices"
            row = changed(row, verdict="different", request=request.request_id, why=why)
        self.rows.append(row)

    async def _seeds(self) -> None:
        self._say("seeds")
        if "seed" in self._client.without or self.plan.route == "transcriptions":
            why = self._client.without.get("seed", "transcription has no seed")
            self.rows.append(Row(check="seed", stage=self._stage, verdict="not checked", why=why))
            return
        request = self._requests[0]
        sampling = {**request.sampling, "temperature": 1.0}
        seeded = [replace(request, sampling=sampling, seed=seed) for seed in (1, 1, 2, 3)]
        runs = await self._client.alone(seeded)
        failed = next((run.failure for run in runs if run.failure is not None), None)
        if failed is not None:
            why = f"{failed.kind}: {failed.message}"
            self.rows.append(Row(check="seed", stage=self._stage, verdict="not checked", why=why))
            return
        outputs = [to_output(run, self._words) for run in runs]
        if self._stage == TEXT:
            self.rows.append(seed_row(TEXT, outputs))
        else:
            row = noise_row(MEDIA, outputs, None)
            if row.why == "other seeds gave the same output" and self.plan.route == "speech":
                row = changed(row, verdict="not checked", why="the seed has no effect on this speech")
            self.rows.append(row)

    async def _limits(self, alone: Sequence[ServerRun]) -> None:
        """Check the maximum of tokens, a stop string, and the counts of tokens."""
        self._say("limits")
        run = next((run for run in alone if len(run.text) > 8), None)
        rows: list[Row] = [Row(check="limits", stage=TEXT, verdict="equal")]
        for item in alone:
            rows += self._counts(item)
        if run is not None:
            name = run.request.request_id
            short = replace(run.request, sampling={**run.request.sampling, "max_tokens": _MAX_TOKENS})
            few = await self._client.send(short)
            if few.failure is not None:
                rows.append(_different("limits", name, f"max_tokens: {few.failure.kind}: {few.failure.message}"))
            elif few.finish_reason != "length" or few.completion_tokens not in (None, _MAX_TOKENS):
                got = f"{few.completion_tokens} tokens, {few.finish_reason}"
                why = "max_tokens must end the answer with finish_reason `length`"
                row = _different("limits", name, why)
                rows.append(changed(row, expected=f"{_MAX_TOKENS} tokens, length", got=got))
            stop = stop_string(run.text)
            if stop is not None:
                rows += await self._stopped(run, stop)
        self._add([worst(rows)])

    async def _stopped(self, run: ServerRun, stop: str) -> list[Row]:
        stopped = await self._client.send(run.request, stop=[stop])
        name, expected = run.request.request_id, run.text[: run.text.index(stop)]
        if stopped.failure is not None:
            return [_different("limits", name, f"stop: {stopped.failure.kind}: {stopped.failure.message}")]
        if stopped.text != expected:
            why = f"the stop string {stop!r} is cut wrongly"
            return [broken("limits", TEXT, name, expected, stopped.text, why)]
        if stopped.finish_reason != "stop":
            why = f"finish_reason is `{stopped.finish_reason}` after a stop string, not `stop`"
            return [_different("limits", name, why)]
        return []

    def _counts(self, run: ServerRun) -> list[Row]:
        """Compare the counts of tokens with the log-probabilities, and with the checkpoint's tokenizer."""
        known = {"completion_tokens": None if run.tokens is None else len(run.tokens), "prompt_tokens": None}
        if run.token_ids is not None:
            known["completion_tokens"] = len(run.token_ids)
        if self.plan.reference is not None:
            known["prompt_tokens"] = self.plan.reference.num_prompt_tokens(run)
        rows = []
        for field, right in known.items():
            got = getattr(run, field)
            # An end token counts, and has no log-probability in some servers.
            allowed = (
                (right, right + 1) if field == "completion_tokens" and right and run.token_ids is None else (right,)
            )
            if right is not None and got is not None and got not in allowed:
                row = _different("limits", run.request.request_id, f"usage.{field} is wrong")
                rows.append(changed(row, expected=str(right), got=str(got)))
        return rows

    async def _modalities(self) -> None:
        """Check that an answer depends on the image or sound that it comes with, and on the order of two images."""
        rows: list[Row] = []
        for field in ("images", "audio"):
            request = next((item for item in self._requests if len(getattr(item, field)) == 1), None)
            if request is None:
                continue
            others: list[dict[str, Any]] = [{field: (another_medium(request, field),)}, {}]
            if self.plan.route == "chat":
                others.append({field: ()})
            runs = await self._answers(await self._client.alone([replace(request, **fields) for fields in others]))
            outputs = [to_output(run, self._words) for run in runs]
            noun = field.removesuffix("s")
            rows.append(depends_row(self._stage, request, outputs[0], outputs[1], f"another {noun} changes nothing"))
            if len(outputs) > 2:
                rows.append(depends_row(self._stage, request, outputs[2], outputs[1], f"the {noun} changes nothing"))
        request = next((item for item in self._requests if len(item.images) > 1), None)
        if request is not None:
            swapped = replace(request, images=request.images[::-1])
            runs = await self._answers(await self._client.alone([request, swapped]))
            one, other = (to_output(run, self._words) for run in runs)
            message = "the order of the images changes nothing"
            rows.append(depends_row(self._stage, request, one, other, message))
        if rows:
            self.rows.append(worst(rows))

    def _compare(self, check: Check, alone: Sequence[EngineOutput], runs: Sequence[ServerRun]) -> list[Row]:
        outputs = [to_output(run, self._words) for run in runs]
        rounding = _ROUNDING.get(self.plan.route, 0.0)
        rows = compare_runs(check, [self._stage], alone, outputs, None, self._words.decode, media_bound=rounding)
        if runs[0].tokens is not None:
            return rows
        hint = "the server gives no log-probabilities, so a near tie cannot be told"
        return [
            changed(row, why=hint, got=None, expected=None, position=None)
            if row.verdict == "different" and row.why is None
            else row
            for row in rows
        ]

    def _add(self, rows: Sequence[Row]) -> None:
        self.rows += worst_of_each(rows)


def _is_refused(run: ServerRun) -> bool:
    return run.failure is not None and run.failure.kind.startswith(("HTTP 4", "HTTP 500", "HTTP 501"))


def _different(check: Check, request: str, why: str) -> Row:
    return Row(check=check, stage=TEXT, verdict="different", request=request, why=why)


def _error(failure: RequestFailure, request: str | None = None) -> OmniError:
    where = "" if request is None else f" to request `{request}`"
    hint = None
    if failure.kind in ("connection refused", "connection lost", "timeout"):
        hint = "the server has stopped or hangs: see its log"
    return ServerDied(f"the server's answer{where}: {failure.kind}: {failure.message}", hint=hint)
