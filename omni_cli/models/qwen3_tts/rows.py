"""A request as rows of the talker's input: text embeddings, to be projected, with the codec side beside them."""

from __future__ import annotations

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

    def speaker(self, name: str) -> Voice:
        """Return the voice of one of the model's speakers."""
        return Voice(self._codecs[0]([self._talker["spk_id"][name]]))

    def make(self, spoken: Spoken, voice: Voice, *, text_first: bool) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the rows of the prompt and those of later frames, of which the last one goes on for ever."""
        codec, ids, how = self._codecs[0], self._tokenize(spoken.text), spoken.instruction
        instruction = self._tokenize(f"<|im_start|>user\n{how}<|im_end|>\n") if how else []
        words = self._tokenize(f"{PROMPT_FRAME[0]}{voice.words}<|im_end|>\n")[3:-2] if voice.words else []
        modes = [self._ids["nothink"], self._ids["think_bos"]]
        if spoken.language is not None:
            modes = [self._ids["think"], self._ids["think_bos"], spoken.language]
        before = codec([*modes, self._ids["think_eos"]])
        pad, begin = codec([self._ids["pad"]]), codec([self._ids["bos"]])
        head = torch.cat([before, before[:0] if voice.row is None else voice.row.to(before), pad])
        texts = [*words, *ids[3:-5], self._end]
        sound = begin if voice.codes is None else torch.cat([begin, self._frames(voice.codes)])
        rows = [
            self._join([*instruction, *ids[:3]]),
            self._join([self._pad] * (len(head) - 1) + [self._begin], head),
        ]
        if text_first:
            rows += [self._join(texts, pad.expand(len(texts), -1)), self._join([self._pad] * len(sound), sound)]
            return torch.cat(rows), self._join([self._pad])
        missing = [self._pad] * (len(sound) - len(texts))
        rows.append(self._join([*texts, *missing][: len(sound)], sound))
        return torch.cat(rows), self._join([*texts[len(sound) :], self._pad])

    def _join(self, text_ids: Sequence[int], codec: torch.Tensor | None = None) -> torch.Tensor:
        text = self._text(text_ids)
        codec = text.new_zeros(len(text), self._talker["hidden_size"]) if codec is None else codec
        return torch.cat([text, codec], dim=1)

    def _frames(self, codes: torch.Tensor) -> torch.Tensor:
        """Return the sums (num_frames, hidden_size) of the embeddings of each frame's codes."""
        columns = zip(self._codecs, codes.T, strict=True)
        return torch.stack([embed(column.tolist()) for embed, column in columns]).sum(dim=0)
