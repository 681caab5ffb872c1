"""Qwen2.5-Omni's token2wav as a vLLM diffusion model: codec tokens -> DiT -> mel spectrogram -> BigVGAN -> waveform.

The modules and the sampler are transformers' own, run in float32 as there; this class makes them a model that vLLM
loads and that the diffusion runner calls with a batch of requests.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import torch
from torch import nn
from transformers.models.qwen2_5_omni.modeling_qwen2_5_omni import Qwen2_5OmniToken2WavModel
from vllm.config import VllmConfig
from vllm.model_executor.layers.pooler import DispatchPooler, IdentityPooler
from vllm.model_executor.models.interfaces import IsAttentionFree
from vllm.model_executor.models.utils import AutoWeightsLoader, WeightsMapper

from omni_cli.models.qwen2_5_omni.speakers import load_speakers
from omni_cli.models.qwen2_5_omni.weights import shards_with_prefix
from omni_cli.worker.diffusion_entry import DiffusionInput

# transformers' solver evaluates the denoiser this many times a step (Runge-Kutta of order four).
EVALUATIONS_PER_STEP = 4


class SpeakerEmbeddings:
    """Makes a speaker encoder run once a speaker instead of once a denoiser call.

    It looks at the reference mel spectrogram alone, which is the same in all calls and all requests of a speaker.
    Its `forward` is replaced and not the module, whose weights keep their names.
    """

    def __init__(self, encoder: nn.Module) -> None:
        self.speaker = ""
        self._encode = encoder.forward
        self._embeddings: dict[tuple[str, torch.Size], torch.Tensor] = {}
        encoder.forward = self._forward

    def _forward(self, mel: torch.Tensor) -> torch.Tensor:
        """`mel` (batch, num_frames, mel_dim) of `self.speaker` -> (batch, enc_dim)."""
        # With guidance the batch has an unconditioned half, without it has not.
        key = (self.speaker, mel.shape)
        if key not in self._embeddings:
            self._embeddings[key] = self._encode(mel)
        return self._embeddings[key]


StepListener = Callable[[str, int, int], None]


class Qwen2_5OmniToken2WavForDiffusion(nn.Module, IsAttentionFree):
    """Loads the weights called `token2wav.` of a whole Qwen2.5-Omni checkpoint.

    `step_listener(request_id, done, total)` is called after each denoising step, where it is set.
    """

    is_pooling_model = True
    hf_to_vllm_mapper = WeightsMapper(orig_to_new_prefix={"thinker.": None, "talker.": None})

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = "") -> None:
        super().__init__()
        model_config = vllm_config.model_config
        self.allow_patterns_overrides = shards_with_prefix(model_config.model, "token2wav.")
        self.token2wav = Qwen2_5OmniToken2WavModel(model_config.hf_config.token2wav_config)
        self.speakers = load_speakers(model_config.model)
        self.num_codes = self.token2wav.code2wav_dit_model.text_embed.codec_embed.num_embeddings
        self.speaker_embeddings = SpeakerEmbeddings(self.token2wav.code2wav_dit_model.input_embed.spk_encoder)
        self.pooler = DispatchPooler({"plugin": IdentityPooler()})
        self.step_listener: StepListener | None = None

    def embed_input_ids(self, input_ids: torch.Tensor) -> torch.Tensor:
        """vLLM asks every model for this; codes are embedded inside the DiT, so here they become (num_tokens, 1)."""
        return input_ids.unsqueeze(-1).float()

    def forward(
        self,
        input_ids: torch.Tensor | None,
        positions: torch.Tensor,
        intermediate_tensors: object = None,
        inputs_embeds: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """For vLLM's profiling run alone: a diffusion has no token-wise pass. Returns (num_tokens, 1)."""
        return self.embed_input_ids(input_ids)

    def sample(self, inputs: Sequence[DiffusionInput]) -> list[torch.Tensor]:
        """One waveform (num_samples,) float32 in [-1, 1] for each request.

        Requests run one after another within the batch: each draws its noise from its own seed, and none can disturb
        another, not even in the last bit.
        """
        return [self._waveform(request) for request in inputs]

    def _waveform(self, request: DiffusionInput) -> torch.Tensor:
        information = request.information
        name = information["speaker"][0]
        speaker = self.speakers[name]
        self.speaker_embeddings.speaker = name
        num_steps = int(information["num_inference_steps"][0])
        device = request.token_ids.device
        devices = [device] if device.type == "cuda" else []
        calls = 0

        def count(*_: object) -> None:
            nonlocal calls
            calls += 1
            if self.step_listener is not None and calls % EVALUATIONS_PER_STEP == 0:
                self.step_listener(request.request_id, calls // EVALUATIONS_PER_STEP, num_steps - 1)

        handle = self.token2wav.code2wav_dit_model.register_forward_hook(count)
        try:
            # transformers draws the initial noise from the global generator.
            with torch.random.fork_rng(devices=devices):
                torch.manual_seed(int(information["seed"][0]))
                waveform = self.token2wav(
                    request.token_ids.unsqueeze(0).long(),
                    conditioning=speaker["cond"].to(device).float(),
                    reference_mel=speaker["ref_mel"].to(device).float(),
                    num_steps=num_steps,
                    guidance_scale=float(information["guidance_scale"][0]),
                    sway_coefficient=float(information["sway_coefficient"][0]),
                )
        finally:
            handle.remove()
        return waveform.reshape(-1).float()

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> set[str]:
        return AutoWeightsLoader(self).load_weights(weights, mapper=self.hf_to_vllm_mapper)
