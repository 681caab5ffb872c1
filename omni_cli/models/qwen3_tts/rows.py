"""A request as rows of the talker's input: text embeddings, to be projected, with the codec side beside them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from omni_cli.models.qwen3_tts.family import PROMPT_FRAME

Embed = Callable[[Sequence[int]], torch.Tensor]


@dataclass(frozen=True)
class SpokenIds:
    """Token ids: the instruction, the head of the assistant's turn, the words of a recording, and the text."""

    instruction: Sequence[int]
    head: Sequence[int]
    recorded: Sequence[int]
    text: Sequence[int]


def tokenize_request(tokenize: Callable[[str], list[int]], turn: str, instruction: str, recorded: str) -> SpokenIds:
    """Return the token ids of a request, whose turn is `frame_text`'s; "" is no instruction, and no recorded words."""
    ids = tokenize(turn)
    return SpokenIds(
        tokenize(f"<|im_start|>user\n{instruction}<|im_end|>\n") if instruction else (),
        ids[:3],
        tokenize(f"{PROMPT_FRAME[0]}{recorded}<|im_end|>\n")[3:-2] if recorded else (),
        ids[3:-5],
    )


class RowMaker:
    """Makes rows (num_rows, text_hidden_size + hidden_size) for one checkpoint, whose config.json is `config`.

    `text` looks up text embeddings, and `codecs` the codec embeddings of each codebook.
    """

    def __init__(self, config: Mapping[str, Any], text: Embed, codecs: Sequence[Embed]) -> None:
        self._text, self._codecs, self._talker = text, codecs, config["talker_config"]
        self._pad, self._begin, self._end = (config[f"tts_{name}_token_id"] for name in ("pad", "bos", "eos"))
        marks = ("pad", "bos", "think", "nothink", "think_bos", "think_eos")
        self._ids: dict[str, int] = {name: self._talker[f"codec_{name}_id"] for name in marks}

    def speaker(self, name: str) -> torch.Tensor:
        """Return the codec row (1, hidden_size) of one of the model's speakers."""
        return self._codecs[0]([self._talker["spk_id"][name]])

    def make(
        self,
        ids: SpokenIds,
        *,
        language: int | None,
        speaker: torch.Tensor | None,
        codes: torch.Tensor | None,
        text_first: bool,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the rows of the prompt and those of later frames, of which the last one goes on for ever.

        `speaker` (1, hidden_size) is the row of a voice, None for none; `codes` (num_frames, num_codebooks) are those
        of a recording that the text goes on from.
        """
        modes = [self._ids["think"], self._ids["think_bos"], language] if language is not None else None
        names = [*(modes or [self._ids["nothink"], self._ids["think_bos"]]), self._ids["think_eos"]]
        # All embeddings of a table by one look-up, of which each takes as long as many rows.
        marks = self._codecs[0]([*names, self._ids["pad"], self._ids["bos"]])
        before, pad, begin = marks.split([len(names), 1, 1])
        voice = before[:0] if speaker is None else speaker.to(before)
        head = torch.cat([before, voice, pad])
        texts = [*ids.recorded, *ids.text, self._end]
        sound = begin if codes is None else torch.cat([begin, self._frames(codes)])
        first = [*ids.instruction, *ids.head]
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
        return torch.stack([embed(column.tolist()) for embed, column in zip(self._codecs, codes.T, strict=True)]).sum(
            dim=0
        )
