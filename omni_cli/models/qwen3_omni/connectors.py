"""Qwen3-Omni: thinker -> talker -> code2wav.

The arithmetic is that of transformers' `Qwen3OmniMoeForConditionalGeneration.generate`, for one request.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch

from omni_cli.core.errors import InputError
from omni_cli.models.qwen_omni.media import Embed, ThinkerOutput, reference_positions
from omni_cli.stage.payloads import PayloadError
from omni_cli.stage.request_payloads import EmbeddedPrompt


def thinker_to_talker(
    stage_output: ThinkerOutput, *, config: Any, embed: Embed, speaker_id: int, is_whole: bool = True
) -> EmbeddedPrompt:
    """Build the talker's input rows. `config` is the `Qwen3OmniMoeConfig`; `embed` looks up the thinker's embeddings.

    Of text the talker needs only the tokens that were an input of the thinker, all except the last. The rows are the
    outputs of layer `accept_hidden_layer` at the prompt's tokens of images, videos and audio, None without any.

    The prompt consists of the users' turns and the head of the assistant's: its first three tokens, four padding
    tokens, text-begin, and the first token of the reply; codec embeddings are added to the last six. Each further
    token of the reply conditions one step, followed by a text-end and a padding row, which `more_embeds` adds if
    the stage output is partial.
    """
    talker, prompt_ids = config.talker_config, stage_output.prompt_token_ids
    user = _user_positions(prompt_ids, config)
    turn = [*prompt_ids[_assistant_start(prompt_ids, config) :], *stage_output.output_token_ids]
    # A reply of a single token, which the reference cannot speak, has no first row: the text ends there.
    first = turn[3:4] or [config.tts_eos_token_id]
    head = [*turn[:3], *[config.tts_pad_token_id] * 4, config.tts_bos_token_id, *first]
    later = [*turn[4:], *(_ending(config)[len(turn) <= 3 :] if is_whole else ())]
    text_ids = [*(prompt_ids[position] for position in user), *head]
    rows = embed(text_ids)
    media_ids = media_token_ids(config)
    hidden_positions = [row for row, position in enumerate(user) if prompt_ids[position] in media_ids]
    if hidden_positions:
        rows[hidden_positions] = _rows_of_users(stage_output, user, media_ids, rows)
    thought = [talker.codec_nothink_id, talker.codec_think_bos_id, talker.codec_think_eos_id]
    codec = [*thought, speaker_id, talker.codec_pad_id, talker.codec_bos_id]
    tokens_without_embedding = len(rows) - len(codec)
    has_grids = any("grid_thw" in name for name in stage_output.media)
    position_ids = [*text_ids[: len(user)], *[config.tts_pad_token_id] * len(head)]
    return EmbeddedPrompt(
        prompt_token_ids=[talker.codec_pad_id] * tokens_without_embedding + codec,
        prompt_embeds=rows,
        later=embed(later),
        hidden_positions=hidden_positions,
        mrope_positions=mrope_positions(position_ids, stage_output.media, config) if has_grids else None,
        tokens_without_embedding=tokens_without_embedding,
    )


def more_embeds(token_ids: Sequence[int], *, config: Any, embed: Embed, is_last: bool) -> torch.Tensor:
    """Build the rows (num_rows, embedding_size) that follow the rows of `thinker_to_talker` and of earlier calls."""
    return embed([*token_ids, *(_ending(config) if is_last else ())])


def media_token_ids(config: Any) -> frozenset[int]:
    """Return the placeholder tokens of images, videos and audio in the thinker's prompt."""
    thinker = config.thinker_config
    return frozenset({thinker.audio_token_id, thinker.image_token_id, thinker.video_token_id})


def _ending(config: Any) -> list[int]:
    """Return the tokens after the last one of the reply: text-end, and padding, which is used for all further steps."""
    return [config.tts_eos_token_id, config.tts_pad_token_id]


def _user_positions(token_ids: Sequence[int], config: Any) -> list[int]:
    """Return the positions of users' turns: each from its start token, before a role, to the next start token."""
    positions, is_user = [], False
    for position, token_id in enumerate(token_ids):
        if token_id == config.im_start_token_id or position == 0:
            is_user = token_ids[position + 1 : position + 2] == [config.user_token_id]
        if is_user:
            positions.append(position)
    return positions


def _assistant_start(token_ids: Sequence[int], config: Any) -> int:
    turn = [config.im_start_token_id, config.assistant_token_id]
    for position in range(len(token_ids) - 2, -1, -1):
        if list(token_ids[position : position + 2]) == turn:
            return position
    raise InputError(
        "the prompt has no assistant's turn, and speech begins with one",
        hint="leave out `--raw` or `add_generation_prompt`, or ask for text alone",
    )


def _rows_of_users(
    stage_output: ThinkerOutput, user: Sequence[int], media_ids: frozenset[int], rows: torch.Tensor
) -> torch.Tensor:
    """Return the media rows of users' turns, (num_tokens, hidden_size)."""
    positions = [position for position, token_id in enumerate(stage_output.prompt_token_ids) if token_id in media_ids]
    media_rows = stage_output.hidden_states
    if media_rows is None or media_rows.shape != (len(positions), rows.shape[1]):
        shape = None if media_rows is None else tuple(media_rows.shape)
        raise PayloadError(f"media rows are of shape {shape} instead of {(len(positions), rows.shape[1])}")
    wanted = set(user)
    return media_rows[[index for index, position in enumerate(positions) if position in wanted]].to(rows.dtype)


def mrope_positions(token_ids: Sequence[int], media: dict[str, torch.Tensor], config: Any) -> torch.Tensor:
    """Return M-RoPE positions (3, num_tokens) int64 of a talker's prompt with images or video, as in transformers."""
    from transformers import Qwen3OmniMoePreTrainedModelForConditionalGeneration as Reference

    # transformers' talker expects the audio encoder's configuration in its own, which lacks it.
    known = SimpleNamespace(**config.talker_config.to_dict(), audio_config=config.thinker_config.audio_config)
    model: Any = SimpleNamespace(config=known, spatial_merge_size=config.talker_config.spatial_merge_size)
    model.get_llm_pos_ids_for_vision = lambda *args: Reference.get_llm_pos_ids_for_vision(model, *args)
    return reference_positions(partial(Reference.get_rope_index, model), token_ids, media)
