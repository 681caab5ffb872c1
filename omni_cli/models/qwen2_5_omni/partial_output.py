"""A thinker's stage_output in parts, cut from its output so far."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from omni_cli.models.qwen2_5_omni.connectors import ReplyRows, ThinkerOutput


class PartialOutput:
    """State of one request. A reply token has a row once it has been an input, one step after it was sampled."""

    def __init__(self) -> None:
        self._rows: list[torch.Tensor] = []
        self._num_replied = 0
        self._has_begun = False

    def add_rows(self, rows: torch.Tensor | None) -> None:
        """Add hidden states (num_rows, hidden_size) of the next positions of prompt and reply as they are computed."""
        if rows is not None:
            self._rows.append(rows)

    def take(
        self, prompt_ids: Sequence[int], reply_ids: Sequence[int], media: dict[str, torch.Tensor], *, is_last: bool
    ) -> dict[str, object] | None:
        """Return the next part to encode; None if there is none yet. `reply_ids` are all tokens so far.

        The first part is a `ThinkerOutput` with a reply row or more, or complete; the others are `ReplyRows`.
        """
        num_prompt = 0 if self._has_begun else len(prompt_ids)
        # The last token may have a row (drafted tokens), which is useless before its successor is known.
        wanted = num_prompt + len(reply_ids) - 1 - self._num_replied
        available = sum(part.shape[0] for part in self._rows)
        num_rows = min(available, wanted)
        if not is_last and num_rows <= num_prompt:
            return None
        if is_last and num_rows < wanted:
            raise ValueError(f"{num_rows} hidden-state rows for {wanted} positions")
        rows = torch.cat(self._rows)
        self._rows = [rows[num_rows:]]
        first = self._num_replied
        self._num_replied += num_rows - num_prompt
        if self._has_begun:
            return ReplyRows(list(reply_ids[first : self._num_replied]), rows[:num_rows]).information()
        self._has_begun = True
        replied = list(reply_ids[: self._num_replied + 1])
        return ThinkerOutput(list(prompt_ids), replied, rows[:num_rows], media).information()
