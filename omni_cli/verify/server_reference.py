"""A server's answers against transformers with the same weights, by token ids if the server gives them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from omni_cli.bench.profile_source import ProfileSource
from omni_cli.checkpoints.files import read_family
from omni_cli.config.schema import EngineConfig
from omni_cli.errors import OmniError
from omni_cli.inputs.capabilities import Capabilities
from omni_cli.models.scores import EngineOutput, EngineTokens, Expected
from omni_cli.verify.noise import get_noise
from omni_cli.verify.reference_memory import check_memory
from omni_cli.verify.reference_process import Work, get_ways, run_reference
from omni_cli.verify.server_client import TEXT, ServerRun
from omni_cli.verify.tokens import get_probabilities, make_decoder
from omni_cli.verify.verdicts import changed, judge_tokens
from omni_cli.verify_record import Row, TokenProbability

REFERENCE_ROUTES = ("chat", "completions", "transcriptions")


@dataclass
class ServerReference:
    """The weights of a served model, for one of `REFERENCE_ROUTES`."""

    source: ProfileSource
    config: EngineConfig
    folder: Path
    route: str
    low_memory: bool
    verbose: bool
    _num_prompt_tokens: dict[str, int] = field(default_factory=dict)

    async def judge(
        self, runs: Sequence[ServerRun], folder: Path, say: Callable[[str], None]
    ) -> tuple[list[Row], list[TokenProbability]]:
        """Return the `reference` rows and the probabilities of all tokens; exchanges files in `folder`."""
        reference = read_family(self.folder).reference
        stage = self.config.stages[0].name
        transcribes = Capabilities.of(self.config).transcribes
        if reference is None or self.config.stages[0].kind != "ar" or transcribes != (self.route == "transcriptions"):
            why = "this model's reference does not take a server's answers"
            return [Row(check="reference", stage=TEXT, verdict="not checked", why=why)], []
        rows: list[Row] = []
        if transcribes:
            outputs = [EngineOutput(run.request, {}, text=run.text) for run in runs]
        else:
            outputs, rows = self._with_tokens(runs)
        if not outputs:
            return rows, []
        ways = get_ways(self.config.dtype, low_memory=self.low_memory)
        check_memory(self.folder, ways)
        work = Work(reference, str(self.folder), self.source, (), ways, tuple(outputs))
        try:
            answer = await run_reference(work, folder, say, verbose=self.verbose)
        except OmniError as error:
            return [*rows, Row(check="reference", stage=TEXT, verdict="not checked", why=error.message)], []
        if answer.why is not None:
            return [*rows, Row(check="reference", stage=TEXT, verdict="not checked", why=answer.why)], []
        ids = answer.token_ids
        outputs = [
            replace(output, tokens={stage: EngineTokens.without_logprobs(ids[output.request.request_id])})
            if output.request.request_id in ids
            else output
            for output in outputs
        ]
        wide, decode = answer.results[0], make_decoder(self.folder, self.config)
        for output, item in zip(outputs, wide, strict=True):
            if isinstance(item, Expected) and item.num_input_tokens is not None:
                self._num_prompt_tokens[output.request.request_id] = item.num_input_tokens
        row = changed(judge_tokens(stage, outputs, wide, get_noise(answer.results), decode), stage=TEXT)
        if row.logprob_diff is None and row.verdict != "not checked":
            row = changed(row, why="by the text: the server gives no log-probabilities")
        return [row, *rows], get_probabilities(outputs, wide, decode)

    def _with_tokens(self, runs: Sequence[ServerRun]) -> tuple[list[EngineOutput], list[Row]]:
        """Return the answers whose tokens are known, and rows of the others."""
        ids, stage = _TokenIds(self.folder), self.config.stages[0].name
        outputs: list[EngineOutput] = []
        rows: list[Row] = []
        for run in runs:
            tokens = ids.tokens(run)
            if isinstance(tokens, str):
                name = run.request.request_id
                rows.append(Row(check="reference", stage=TEXT, verdict="not checked", request=name, why=tokens))
                continue
            request = replace(run.request, raw=self.route == "completions")
            outputs.append(EngineOutput(request, {stage: tokens}, num_input_tokens=run.prompt_tokens))
        return outputs, rows

    def num_prompt_tokens(self, run: ServerRun) -> int | None:
        """Return the length of a prompt by the checkpoint's tokenizer; None if the reference has not run it."""
        return self._num_prompt_tokens.get(run.request.request_id)


class _TokenIds:
    """Finds the ids of a server's tokens: as it returns them, by their texts, or of the whole text."""

    def __init__(self, folder: Path) -> None:
        from tokenizers import Tokenizer

        path = folder / "tokenizer.json"
        self._tokenizer: Any = Tokenizer.from_file(str(path)) if path.is_file() else None
        self._by_text: dict[str, set[int]] = {}
        if self._tokenizer is not None:
            for number in self._tokenizer.get_vocab().values():
                text = self._tokenizer.decode([number], skip_special_tokens=False)
                self._by_text.setdefault(text, set()).add(number)
            for text, number in self._tokenizer.get_vocab().items():
                self._by_text.setdefault(text, set()).add(number)

    def tokens(self, run: ServerRun) -> EngineTokens | str:
        """Return the tokens of an answer, with log-probabilities if it has some; else why they cannot be found."""
        if run.tokens is None:
            return self._of_text(run)
        found = run.token_ids or [self._id(token.text, token.token_id) for token in run.tokens]
        ids = [number for number in found if number is not None]
        if len(ids) < len(found) or len(ids) < len(run.tokens):
            return "the texts of the server's tokens do not tell their ids"
        width = 1 + max((len(token.top) for token in run.tokens), default=0)
        candidates = np.full((len(ids), width), -1, np.int64)
        logprobs = np.full((len(ids), width), np.nan)
        candidates[:, 0] = ids
        for position, token in enumerate(run.tokens):
            logprobs[position, 0] = token.logprob
            for column, (text, logprob) in enumerate(token.top, start=1):
                number = self._id(text, None)
                if number is not None:
                    candidates[position, column], logprobs[position, column] = number, logprob
        return EngineTokens(tuple(int(number) for number in candidates[:, 0]), candidates, logprobs)

    def _of_text(self, run: ServerRun) -> EngineTokens | str:
        if self._tokenizer is None:
            return "the checkpoint has no tokenizer.json"
        ids: list[int] = self._tokenizer.encode(run.text, add_special_tokens=False).ids
        # An end token may be counted.
        if run.completion_tokens is not None and run.completion_tokens not in (len(ids), len(ids) + 1):
            return "the server gives no token ids, and its text does not tell them"
        return EngineTokens.without_logprobs(ids)

    def _id(self, text: str, token_id: int | None) -> int | None:
        if token_id is not None:
            return token_id
        if text.startswith("token_id:"):
            return int(text.removeprefix("token_id:"))
        found = self._by_text.get(text, set())
        return next(iter(found)) if len(found) == 1 else None
