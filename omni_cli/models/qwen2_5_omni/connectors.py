"""Qwen2.5-Omni: thinker -> talker -> token2wav.

The arithmetic is that of transformers' `Qwen2_5OmniForConditionalGeneration.generate`, for one request.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import torch

from omni_cli.core.errors import CheckpointError, InputError
from omni_cli.models.qwen2_5_omni.settings import TalkerPrompt
from omni_cli.models.qwen_omni.media import Embed, ThinkerOutput, reference_positions
from omni_cli.stage.payloads import PayloadError, get_integers, get_tensor
from omni_cli.stage.request_payloads import EmbeddedPrompt


class PartialOutput:
    """A thinker's stage output in parts, cut from its output so far: the state of one request.

    A reply token has a row once it has been an input, one step after it was sampled.
    """

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

        The first part is a `ThinkerOutput` with a reply row or more, or complete; the others have the tokens since the
        last part, and their rows.
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
            return {"token_ids": list(reply_ids[first : self._num_replied]), "hidden_states": rows[:num_rows]}
        self._has_begun = True
        replied = list(reply_ids[: self._num_replied + 1])
        return ThinkerOutput(list(prompt_ids), replied, rows[:num_rows], media).information()


def thinker_to_talker(
    stage_output: ThinkerOutput,
    *,
    config: Any,
    embed: Embed,
    text_bos_token_id: int,
    talker_prompt: TalkerPrompt,
    is_whole: bool = True,
) -> EmbeddedPrompt:
    """Build the talker's input rows. `config` is the `Qwen2_5OmniTalkerConfig`.

    The output has one row for each of P prompt tokens and of N output tokens except the last, which was never an input.
    Each row of the talker is such a last hidden state plus its input embedding, without the embeddings of media tokens.
    The prompt is followed by the speaker's text-begin embedding and the first reply row. Later reply rows condition
    the decoding steps one by one, followed by a text-end and a padding row, which `more_embeds` adds if the output is
    partial. A partial output must have a reply row.

    With a `full` prompt, as Qwen published it, the embeddings of the last two codec ids are added, and images and audio
    have M-RoPE positions. A `plain` prompt has neither, as transformers 5.19 computes it for one unpadded prompt: it
    drops an attention mask of ones, and the talker takes the missing mask to mean "not the first step".
    """
    prompt_ids, output_ids = stage_output.prompt_token_ids, stage_output.output_token_ids
    num_prompt = len(prompt_ids)
    assert stage_output.hidden_states is not None
    consumed = [*prompt_ids, *output_ids[:-1]]
    rows = _rows(consumed, stage_output.hidden_states[: len(consumed)], config, embed)
    stream = rows[num_prompt:]
    if is_whole:
        # A reply of a single token has no row, so the talker receives the end of the text immediately.
        stream = torch.cat([stream, _ending(config, embed)])
    return EmbeddedPrompt(
        prompt_token_ids=[config.tts_codec_mask_token_id] * num_prompt
        + [config.tts_codec_pad_token_id, config.tts_codec_start_token_id],
        prompt_embeds=torch.cat([rows[:num_prompt], embed([text_bos_token_id]), stream[:1]]),
        later=stream[1:],
        mrope_positions=(
            mrope_positions([*prompt_ids, text_bos_token_id, output_ids[0]], stage_output.media, config)
            if talker_prompt == "full" and stage_output.media
            else None
        ),
        tokens_without_embedding=num_prompt + 2 if talker_prompt == "plain" else 0,
    )


def more_embeds(reply: dict[str, object], *, config: object, embed: Embed, is_last: bool) -> torch.Tensor:
    """Build the rows (num_rows, embedding_size) that follow those of `thinker_to_talker` and of earlier calls.

    Raises `PayloadError` for a further part of the output in which something is missing or of the wrong type.
    """
    hidden_states = get_tensor(reply, "hidden_states", num_dims=2)
    rows = _rows(get_integers(reply, "token_ids"), hidden_states, config, embed)
    return torch.cat([rows, _ending(config, embed)]) if is_last else rows


def _rows(token_ids: list[int], hidden_states: torch.Tensor, config: Any, embed: Embed) -> torch.Tensor:
    """Return last hidden states plus input embeddings, which are zero for media tokens."""
    if hidden_states.shape[0] != len(token_ids):
        raise ValueError(f"{hidden_states.shape[0]} hidden-state rows for {len(token_ids)} positions")
    media_ids = [config.audio_token_index, config.image_token_index, config.video_token_index]
    embeds = embed(token_ids)
    if hidden_states.shape != embeds.shape:  # a single column would be broadcast
        raise PayloadError(f"{hidden_states.shape[1]} hidden-state columns for embeddings of {embeds.shape[1]}")
    embeds[torch.isin(torch.tensor(token_ids, dtype=torch.long), torch.tensor(media_ids))] = 0
    return hidden_states + embeds


def _ending(config: Any, embed: Embed) -> torch.Tensor:
    """Return the rows after the last reply row: text-end, and padding, which is used for all further steps."""
    return embed([config.tts_text_end_token_id, config.tts_text_pad_token_id])


def spoken_codes(codec_token_ids: Sequence[int], *, config: Any, num_codes: int) -> list[int]:
    """Return codes up to the first end token. Raises `InputError` for a code that token2wav does not have."""
    ends = {config.tts_codec_end_token_id, config.tts_codec_pad_token_id}
    codes = list(itertools.takewhile(lambda token_id: token_id not in ends, codec_token_ids))
    outside = [code for code in codes if code >= num_codes]
    if outside:
        raise InputError(f"the talker made codec token {outside[0]}, and token2wav knows 0 to {num_codes - 1}")
    return codes


def mrope_positions(text_ids: list[int], media: dict[str, torch.Tensor], config: object) -> torch.Tensor:
    """Return M-RoPE positions (3, num_tokens) int64 of a prompt with images, audio or video, as in transformers."""
    from transformers import Qwen2_5OmniTalkerForConditionalGeneration

    with torch.device("meta"):
        talker = Qwen2_5OmniTalkerForConditionalGeneration(config)
    return reference_positions(talker.get_rope_index, text_ids, media)


def load_speakers(model: str) -> dict[str, dict[str, Any]]:
    """Load the speakers by name from `spk_dict.pt` of a folder or repo.

    Each has the token `bos_token`, and tensors `cond` (1, enc_emb_dim) and `ref_mel` (1, num_frames, num_mels).
    Raises `CheckpointError` if the file is missing or cannot be read without running code.
    """
    import pickle

    from transformers.utils import cached_file

    try:
        path = cached_file(model, "spk_dict.pt")
        speakers: dict[str, dict[str, Any]] = torch.load(path, map_location="cpu", weights_only=True)
    except (OSError, RuntimeError, pickle.UnpicklingError, EOFError, ValueError) as error:
        raise CheckpointError(
            f"cannot read the speaker file spk_dict.pt of {model}: {str(error).splitlines()[0]}",
            hint="Qwen2.5-Omni checkpoints come with one; copy it into the folder",
        ) from error
    return speakers
