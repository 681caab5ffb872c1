"""Qwen3-Omni's thinker, talker and code2wav as vLLM models.

The thinker is vLLM's, with the rows of images, videos and audio for the talker. The talker makes frames of codes:
vLLM samples the first code of each frame as the talker's token; the code predictor draws the others within the step
(`predict_codes`). A position's input is a row from the thinker plus the embeddings of all its codes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from transformers import Qwen3OmniMoeCode2Wav
from transformers.models.qwen3_omni_moe.modeling_qwen3_omni_moe import Qwen3OmniMoeTalkerResizeMLP
from vllm.compilation.decorators import support_torch_compile
from vllm.config import VllmConfig
from vllm.distributed import get_pp_group
from vllm.model_executor.models.interfaces import SupportsMRoPE
from vllm.model_executor.models.qwen2_5_omni_thinker import Qwen2_5OmniThinkerMultiModalProcessor
from vllm.model_executor.models.qwen3_moe import Qwen3MoeModel
from vllm.model_executor.models.qwen3_omni_moe_thinker import (
    Qwen3OmniMoeThinkerDummyInputsBuilder,
    Qwen3OmniMoeThinkerForConditionalGeneration,
    Qwen3OmniMoeThinkerMultiModalProcessor,
    Qwen3OmniMoeThinkerProcessingInfo,
)
from vllm.model_executor.models.utils import PPMissingLayer, make_empty_intermediate_tensors_factory
from vllm.multimodal import MULTIMODAL_REGISTRY
from vllm.multimodal.inputs import MultiModalFieldConfig
from vllm.sequence import IntermediateTensors

from omni_cli.models.codec.code_predictor import CodeSampling
from omni_cli.models.codec.decoder_stage import CodecForDiffusion
from omni_cli.models.codec.talker_model import TalkerModel, talker_weights

_ROWS = "stage_output_rows"
_PADDED_FRAMES = "padded_frames"


def pad_together(engine_input: Any, config: Any) -> None:
    """Have a request's audio encoded as in the reference: all of it at once, and without that of other requests.

    The audio encoder pads each window of audio to the longest of a call, and its convolutions see the padding. vLLM
    encodes what a step needs: audio of several requests, or a part of a request's. So each audio of a preprocessed
    prompt gets the number of frames to pad to, and vLLM batches only audio in which that is equal.
    """
    sounds = engine_input.get("mm_kwargs", {}).get("audio", ())
    if not sounds:
        return
    window = 2 * config.audio_config.n_window
    frames = min(window, max(int(sound["audio_feature_lengths"].data) for sound in sounds))
    shared = MultiModalFieldConfig.shared("audio", len(sounds), keep_on_cpu=True)
    for sound, padded in zip(sounds, shared.build_elems(_PADDED_FRAMES, torch.tensor(frames)), strict=True):
        sound[_PADDED_FRAMES] = padded


class UnpaddedAudioProcessor(Qwen3OmniMoeThinkerMultiModalProcessor):
    """vLLM's processor with the audio features that transformers computes, as in vLLM's Qwen2.5-Omni.

    vLLM's Qwen3-Omni pads each audio to whole frames, for a cache that is not used here, which changes the last
    features and may add one.
    """

    _get_hf_mm_inputs = Qwen2_5OmniThinkerMultiModalProcessor._get_hf_mm_inputs
    _postprocess_hf_mm_data = Qwen2_5OmniThinkerMultiModalProcessor._postprocess_hf_mm_data


@MULTIMODAL_REGISTRY.register_processor(
    UnpaddedAudioProcessor,
    info=Qwen3OmniMoeThinkerProcessingInfo,
    dummy_inputs=Qwen3OmniMoeThinkerDummyInputsBuilder,
)
class Qwen3OmniMoeThinkerForSpeech(Qwen3OmniMoeThinkerForConditionalGeneration):
    """vLLM's thinker; `stage_output_rows` (max_num_batched_tokens, hidden_size) are of layer `accept_hidden_layer`.

    A pipeline rank that has computed or received the layer's rows sends them on beside its hidden states.
    """

    stage_output_rows: torch.Tensor

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = "") -> None:
        super().__init__(vllm_config=vllm_config, prefix=prefix)
        config = vllm_config.model_config.hf_config
        self._speaks: bool = config.enable_audio_output
        if not self._speaks:
            return
        num_rows = vllm_config.scheduler_config.max_num_batched_tokens
        hidden_size = config.thinker_config.text_config.hidden_size
        # Persistent, because a captured CUDA graph writes to the address it was captured with.
        self.register_buffer(_ROWS, torch.zeros(num_rows, hidden_size), persistent=False)
        self.make_empty_intermediate_tensors = make_empty_intermediate_tensors_factory(
            ["hidden_states", "residual", _ROWS], hidden_size
        )
        layer, decoder = config.talker_config.accept_hidden_layer, self.language_model.model
        if get_pp_group().is_last_rank and layer >= decoder.start_layer:
            self.set_aux_hidden_state_layers((layer,))
        elif decoder.start_layer < layer <= decoder.end_layer:
            # vLLM itself returns such rows only from the last rank.
            decoder.layers[layer - 1].register_forward_hook(self._keep_rows)

    def _keep_rows(self, _layer: object, _args: object, output: tuple[torch.Tensor, torch.Tensor]) -> None:
        hidden_states, residual = output
        self.stage_output_rows[: hidden_states.shape[0]].copy_(hidden_states + residual)

    def forward(
        self,
        input_ids: torch.Tensor | None,
        positions: torch.Tensor,
        intermediate_tensors: IntermediateTensors | None = None,
        inputs_embeds: torch.Tensor | None = None,
        **kwargs: object,
    ) -> torch.Tensor | IntermediateTensors:
        if intermediate_tensors is not None and self._speaks:
            received = intermediate_tensors[_ROWS]
            self.stage_output_rows[: received.shape[0]].copy_(received)
        output = super().forward(input_ids, positions, intermediate_tensors, inputs_embeds, **kwargs)
        if isinstance(output, IntermediateTensors) and self._speaks:
            output.tensors[_ROWS] = self.stage_output_rows[: output["hidden_states"].shape[0]]
        elif isinstance(output, tuple):
            output, (rows,) = output
            self.stage_output_rows[: rows.shape[0]].copy_(rows)
        return output

    def embed_multimodal(self, *, padded_frames: torch.Tensor | None = None, **kwargs: Any) -> Any:
        """Encode media; beside audio shorter than `padded_frames`, encode a silence of that length."""
        if padded_frames is None or int(kwargs["audio_feature_lengths"].max()) >= padded_frames:
            return super().embed_multimodal(**kwargs)
        features, lengths = kwargs["input_audio_features"], kwargs["audio_feature_lengths"]
        silence = features.new_zeros(features.shape[0], int(padded_frames))
        kwargs["input_audio_features"] = torch.cat([features, silence], dim=1)
        kwargs["audio_feature_lengths"] = torch.cat([lengths, padded_frames.reshape(1).to(lengths)])
        kwargs["feature_attention_mask"] = [*kwargs["feature_attention_mask"], torch.ones(silence.shape[1])]
        *embeddings, _ = super().embed_multimodal(**kwargs)
        return tuple(embeddings)


@support_torch_compile(
    dynamic_arg_dims={"input_ids": 0, "positions": -1, "intermediate_tensors": 0, "inputs_embeds": 0}
)
class TalkerDecoder(Qwen3MoeModel):
    """vLLM's decoder, compiled for positions (3, num_tokens), because vLLM compiles for a constant (num_tokens,)."""


class Qwen3OmniMoeTalkerForConditionalGeneration(TalkerModel, SupportsMRoPE):
    """The talker; loads the weights called `talker.` of a whole Qwen3-Omni checkpoint."""

    decoder_class = TalkerDecoder
    # transformers' constants for the code predictor of a talker that samples.
    sampling = CodeSampling(top_k=50, top_p=0.8)
    hf_to_vllm_mapper = talker_weights({"thinker.": None, "code2wav.": None})

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = "") -> None:
        super().__init__(vllm_config=vllm_config, prefix=prefix)
        self.hidden_projection: nn.Module = PPMissingLayer()
        if get_pp_group().is_first_rank:
            self.text_projection = Qwen3OmniMoeTalkerResizeMLP(self.config)
            self.hidden_projection = Qwen3OmniMoeTalkerResizeMLP(self.config)

    def project_input_embeds(self, rows: torch.Tensor, hidden_positions: Sequence[int]) -> torch.Tensor:
        """Project rows (num_rows, thinker_hidden_size) to (num_rows, hidden_size), for the talker to add."""
        size = self.config.thinker_hidden_size
        if rows.shape[1] != size:
            raise ValueError(f"the talker is conditioned on rows of {size}, got {rows.shape[1]}")
        projected: torch.Tensor = self.text_projection(rows)
        if hidden_positions:
            positions = torch.tensor(hidden_positions, device=rows.device)
            projected[positions] = self.hidden_projection(rows[positions])
        return projected


class Qwen3OmniMoeCode2WavForDiffusion(CodecForDiffusion):
    """Loads the weights called `code2wav.` of a Qwen3-Omni checkpoint."""

    weights_prefix = "code2wav."
    sample_rate = 24_000

    def make_codec(self, config: Any) -> nn.Module:
        code2wav = config.code2wav_config
        self.codebook_size, self.num_codebooks = code2wav.codebook_size, code2wav.num_quantizers
        codec: nn.Module = Qwen3OmniMoeCode2Wav._from_config(code2wav, dtype=torch.get_default_dtype())
        return codec
