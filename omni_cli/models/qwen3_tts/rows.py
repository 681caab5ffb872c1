"""A request as rows of the talker's input: text embeddings, to be projected, with the codec side beside them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch

from omni_cli.models.qwen3_tts.family import PROMPT_FRAME
from omni_cli.models.qwen3_tts.spoken import Spoken

Embed = Callable[[Sequence[int]], torch.Tensor]


class Voice(NamedTuple):
    """The row (1, hidden_size) of a voice, None for none.

    Of a recording that the text goes on from, its words and its codes (num_frames, num_codebooks), too.
    """

    row: torch.Tensor | None = None
    words: str = ""
    codes: torch.Tensor | None = None


class RowMaker:
    """Makes rows (num_rows, text_hidden_size + hidden_size) for one checkpoint, whose config.json is `config`.

    `text` looks up text embeddings, and `codecs` the codec embeddings of each codebook.
    """

    def __init__(
        self, config: Mapping[str, Any], tokenize: Callable[[str], list[int]], text: Embed, codecs: Sequence[Embed]
    ) -> None:
        self._tokenize, self._text, self._codecs, self._talker = tokenize, text, codecs, config["talker_config"]
        self._pad, self._begin, self._end = (config[f"tts_{name}_token_id"] for name in ("pad", "bos", "eos"))
        marks = ("pad", "bos", "think", "nothink", "think_bos", "think_eos")
        self._ids: dict[str, int] = {name: self._talker[f"codec_{name}_id"] for name in marks}
        # Of a language or a speaker, the same for each request.
        self._marks = functools.cache(lambda *ids: codecs[0](ids))

    def speaker(self, name: str) -> Voice:
        """Return the voice of one of the model's speakers."""
        return Voice(self._marks(self._talker["spk_id"][name]))

    def make(self, spoken: Spoken, voice: Voice, *, text_first: bool) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the rows of the prompt and those of later frames, of which the last one goes on for ever."""
        ids, how = self._tokenize(spoken.text), spoken.instruction
        instruction = self._tokenize(f"<|im_start|>user\n{how}<|im_end|>\n") if how else []
        words = self._tokenize(f"{PROMPT_FRAME[0]}{voice.words}<|im_end|>\n")[3:-2] if voice.words else []
        modes = [self._ids["nothink"], self._ids["think_bos"]]
        if spoken.language is not None:
            modes = [self._ids["think"], self._ids["think_bos"], spoken.language]
        names = [*modes, self._ids["think_eos"]]
        # All embeddings of a table by one look-up, of which each takes as long as many rows.
        marks = self._marks(*names, self._ids["pad"], self._ids["bos"])
        before, pad, begin = marks.split([len(names), 1, 1])
        head = torch.cat([before, before[:0] if voice.row is None else voice.row.to(before), pad])
        texts = [*words, *ids[3:-5], self._end]
        sound = begin if voice.codes is None else torch.cat([begin, self._frames(voice.codes)])
        first = [*instruction, *ids[:3]]
        beside = [pad.new_zeros(len(first), pad.shape[1]), head]
        now, later = [*first, *[self._pad] * (len(head) - 1), self._begin], [self._pad]
        if text_first:
            now += [*texts, *[self._pad] * len(sound)]
            beside += [pad.expand(len(texts), -1), sound]
        else:
            missing = [self._pad] * (len(sound) - len(texts))
            now += [*texts, *missing][: len(sound)]
            later = [*texts[len(sound) :], *later]
            beside.append(sound)
        codec = torch.cat([*beside, pad.new_zeros(len(later), pad.shape[1])])
        rows, rest = torch.cat([self._text([*now, *later]), codec], dim=1).split([len(now), len(later)])
        return rows, rest

    def _frames(self, codes: torch.Tensor) -> torch.Tensor:
        """Return the sums (num_frames, hidden_size) of the embeddings of each frame's codes."""
        columns = zip(self._codecs, codes.T, strict=True)
        return torch.stack([embed(column.tolist()) for embed, column in columns]).sum(dim=0)
