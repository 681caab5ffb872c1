"""Qwen2.5-Omni's token2wav as a vLLM diffusion model: codec tokens -> DiT -> mel spectrogram -> BigVGAN -> waveform.

The modules and the sampler are transformers' own, run in float32 as there; this class turns them into a model that
vLLM loads and that the diffusion runner calls with a batch of requests.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

import torch
from torch import nn
from transformers.models.qwen2_5_omni.modeling_qwen2_5_omni import Qwen2_5OmniToken2WavModel
from vllm.config import VllmConfig
from vllm.model_executor.layers.pooler import DispatchPooler, IdentityPooler
from vllm.model_executor.models.interfaces import IsAttentionFree
from vllm.model_executor.models.utils import AutoWeightsLoader, WeightsMapper

from omni_cli.config.schema import Execution
from omni_cli.execution.denoiser import Denoiser, prepare_denoiser
from omni_cli.models.qwen2_5_omni.chunk_waveform import chunk_waveform, codes_per_block
from omni_cli.models.qwen2_5_omni.speaker_embeddings import SpeakerEmbeddings
from omni_cli.models.qwen2_5_omni.speakers import load_speakers
from omni_cli.models.qwen2_5_omni.weights import shards_with_prefix
from omni_cli.vllm_integration.diffusion_entry import DiffusionInput, NoOutput

# transformers' solver evaluates the denoiser this many times per step (Runge-Kutta of order four).
EVALUATIONS_PER_STEP = 4
# Two seconds of sound: several blocks of the DiT's attention.
WARM_UP_CODES = 100


class RequestCancelled(Exception):
    """Raised by a listener to drop the rest of a request."""


class WaveformListener(Protocol):
    """Receives the progress of each request; `on_end` gets None if it failed or was dropped.

    `on_begin` and `on_step` may raise `RequestCancelled`: the request is dropped there, and the others of its batch
    continue.
    """

    def on_begin(self, request_id: str) -> None: ...

    def on_step(self, request_id: str, done: int, total: int) -> None: ...

    def on_end(self, request_id: str, waveform: torch.Tensor | None) -> None: ...


class Qwen2_5OmniToken2WavForDiffusion(nn.Module, IsAttentionFree):
    """Loads the weights called `token2wav.` of a Qwen2.5-Omni checkpoint; reports progress to `listener`, if set."""

    is_pooling_model = True
    hf_to_vllm_mapper = WeightsMapper(orig_to_new_prefix={"thinker.": None, "talker.": None})

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = "") -> None:
        super().__init__()
        model_config = vllm_config.model_config
        self.allow_patterns_overrides = shards_with_prefix(model_config.model, "token2wav.")
        self.token2wav = Qwen2_5OmniToken2WavModel(model_config.hf_config.token2wav_config)
        self.speakers = load_speakers(model_config.model)
        self.num_codes = self.token2wav.code2wav_dit_model.text_embed.codec_embed.num_embeddings
        self.speaker_embeddings = SpeakerEmbeddings(self.token2wav.code2wav_dit_model)
        self.pooler = DispatchPooler({"plugin": IdentityPooler()})
        self.listener: WaveformListener | None = None
        self.codes_per_block = codes_per_block(self.token2wav)
        # The process is this stage's own. By default cuDNN picks the vocoder's kernels anew in every call, and a
        # waveform differs by 2e-4 from the previous one. benchmarks/gpu/vocoder_repeats.py measures the cost.
        torch.backends.cudnn.deterministic = True

    def prepare(self, execution: Execution, *, stage: str) -> Denoiser:
        """Make the DiT run in the mode `execution`, once the weights are loaded; raises `StageError`.

        Its shapes follow the number of codes, so compilation covers all of them. There is a CUDA graph for each number
        of codes: codes cannot be padded, since the DiT's attention looks ahead and would see the padding, and a graph
        pays off within its first request, which calls it four times per step.
        """
        dit = self.token2wav.code2wav_dit_model
        return prepare_denoiser(dit, execution, stage=stage, device=str(dit.device), dynamic=True)

    @torch.inference_mode()
    def warm_up(self) -> None:
        """Run one step of a request, so that the first real one compiles nothing and problems show now."""
        information = {
            "speaker": [next(iter(self.speakers))],
            "seed": [0],
            "num_inference_steps": [2],
            "guidance_scale": [0.5],
            "sway_coefficient": [-1.0],
        }
        token_ids = torch.zeros(WARM_UP_CODES, dtype=torch.long, device=self.token2wav.device)
        self.sample([DiffusionInput("warm-up", token_ids, information)])

    def embed_input_ids(self, input_ids: torch.Tensor) -> torch.Tensor:
        """Required by vLLM of every model; codes are embedded inside the DiT, so here they become (num_tokens, 1)."""
        return input_ids.unsqueeze(-1).float()

    def forward(
        self,
        input_ids: torch.Tensor | None,
        positions: torch.Tensor,
        intermediate_tensors: object = None,
        inputs_embeds: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Serve vLLM's profiling run only: a diffusion has no token-wise pass. Returns (num_tokens, 1)."""
        return self.embed_input_ids(input_ids)

    def sample(self, inputs: Sequence[DiffusionInput]) -> list[torch.Tensor | NoOutput]:
        """Return one waveform (num_samples,) float32 in [-1, 1] per request, or per chunk of one.

        Requests run one after another within the batch: each draws its noise from its own seed, and none can affect
        another, not even in the last bit.
        """
        return [self._run(request) for request in inputs]

    def _run(self, request: DiffusionInput) -> torch.Tensor | NoOutput:
        listener = self.listener
        if listener is None:
            return self._waveform(request)
        last = int(request.information["num_inference_steps"][0]) - 1
        calls = 0

        def count(*_: object) -> None:
            nonlocal calls
            calls += 1
            if calls % EVALUATIONS_PER_STEP == 0:
                listener.on_step(request.request_id, calls // EVALUATIONS_PER_STEP, last)

        handle = self.token2wav.code2wav_dit_model.register_forward_hook(count)
        waveform = None
        try:
            listener.on_begin(request.request_id)
            waveform = self._waveform(request)
        except RequestCancelled:
            return NoOutput("it was aborted")
        finally:
            handle.remove()
            listener.on_end(request.request_id, waveform)
        return waveform

    def _waveform(self, request: DiffusionInput) -> torch.Tensor:
        information, device = request.information, request.token_ids.device
        name, seed = information["speaker"][0], int(information["seed"][0])
        self.speaker_embeddings.speaker = name
        codes = request.token_ids.unsqueeze(0).long()
        speaker = self.speakers[name]["cond"].to(device).float()
        reference_mel = self.speakers[name]["ref_mel"].to(device).float()
        # Without a chunk, all codes at once. Noise is drawn on the host for it too, so that a seed gives the same audio
        # on every device, streamed or whole; transformers draws it on the device of the codes.
        codes_start, start, end = information.get("chunk", (0, 0, codes.shape[1]))
        return chunk_waveform(
            self.token2wav,
            codes,
            codes_start=codes_start,
            start=start,
            end=end,
            seed=seed,
            speaker=speaker,
            reference_mel=reference_mel,
            num_steps=int(information["num_inference_steps"][0]),
            guidance_scale=float(information["guidance_scale"][0]),
            sway_coefficient=float(information["sway_coefficient"][0]),
        )

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> set[str]:
        loaded: set[str] = AutoWeightsLoader(self).load_weights(weights, mapper=self.hf_to_vllm_mapper)
        return loaded
