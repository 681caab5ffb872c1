"""Qwen2.5-Omni's token2wav as a vLLM diffusion model: codec tokens -> DiT -> mel spectrogram -> BigVGAN -> waveform.

The modules and the solver are transformers' own; this class wraps them as a model that vLLM loads and that the
diffusion runner calls with a batch of requests.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol

import torch
from transformers.models.qwen2_5_omni.modeling_qwen2_5_omni import Qwen2_5OmniToken2WavModel
from vllm.config import VllmConfig
from vllm.model_executor.models.utils import AutoWeightsLoader, WeightsMapper

from omni_cli.checkpoints.shards import shards_with_prefix
from omni_cli.execution.denoiser import Denoiser
from omni_cli.models.qwen2_5_omni.settings import Token2WavConfig
from omni_cli.models.qwen2_5_omni.speakers import load_speakers
from omni_cli.models.qwen2_5_omni.speech_request import DenoisingSettings, SynthesisRequest
from omni_cli.models.qwen2_5_omni.synthesizer import Synthesizer, codes_per_block
from omni_cli.vllm_integration.diffusion_entry import DiffusionInput, NoOutput
from omni_cli.vllm_integration.diffusion_model import DiffusionModel

# Two seconds of sound, which are several blocks of the DiT's attention.
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


class Qwen2_5OmniToken2WavForDiffusion(DiffusionModel):
    """Loads the weights called `token2wav.` of a Qwen2.5-Omni checkpoint; reports progress to `listener`, if set."""

    hf_to_vllm_mapper = WeightsMapper(orig_to_new_prefix={"thinker.": None, "talker.": None})

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = "") -> None:
        super().__init__()
        model_config = vllm_config.model_config
        self.allow_patterns_overrides = shards_with_prefix(model_config.model, "token2wav.")
        self.token2wav = Qwen2_5OmniToken2WavModel(model_config.hf_config.token2wav_config)
        self.speakers = load_speakers(model_config.model)
        self.num_codes = self.token2wav.code2wav_dit_model.text_embed.codec_embed.num_embeddings
        self.listener: WaveformListener | None = None
        self.codes_per_block = codes_per_block(self.token2wav)
        # The process is this stage's own. By default cuDNN selects the vocoder's kernels in every call, and waveforms
        # differ by 2e-4 from call to call. benchmarks/gpu/vocoder_repeats.py measures the cost.
        torch.backends.cudnn.deterministic = True

    def prepare(self, stage: Token2WavConfig) -> Denoiser:
        """Make the modules run as `stage` asks, once the weights are loaded; raises `StageError`."""
        # Not a module attribute, because vLLM would look for weights of that name.
        self._synthesizers = (Synthesizer(self.token2wav, self.speakers, stage),)
        return self.synthesizer.denoiser

    @property
    def synthesizer(self) -> Synthesizer:
        return self._synthesizers[0]

    @torch.inference_mode()
    def warm_up(self) -> None:
        """Run one step of a request, so that the first real one compiles nothing and errors show early."""
        codes = torch.zeros(WARM_UP_CODES, dtype=torch.long, device=self.token2wav.device)
        speaker = next(iter(self.speakers))
        request = SynthesisRequest("warm-up", codes, 0, 0, WARM_UP_CODES, 0, speaker, DenoisingSettings(2, 0.5, -1.0))
        self.synthesizer.capture_ahead(request)
        self._run([request])

    @torch.inference_mode()
    def sample(self, inputs: Sequence[DiffusionInput]) -> list[torch.Tensor | NoOutput]:
        """Return one waveform (num_samples,) float32 in [-1, 1] per request, or per chunk of one."""
        requests = [SynthesisRequest.of(each.request_id, each.token_ids, each.information) for each in inputs]
        made: dict[str, torch.Tensor | NoOutput] = {}
        for group in self.synthesizer.groups(requests):
            made.update(self._run(group))
        return [made[each.request_id] for each in inputs]

    def _run(self, requests: Sequence[SynthesisRequest]) -> dict[str, torch.Tensor | NoOutput]:
        """Denoise requests of one group and make their waveforms; the listener gets each once it is finished."""
        made: dict[str, torch.Tensor | NoOutput] = {}
        try:
            for request_id, waveform in self._waveforms(requests, made):
                made[request_id] = waveform
                if self.listener is not None:
                    self.listener.on_end(request_id, waveform)
        finally:
            for request in requests:
                if self.listener is not None and not isinstance(made.get(request.request_id), torch.Tensor):
                    self.listener.on_end(request.request_id, None)
        return made

    def _waveforms(
        self, requests: Sequence[SynthesisRequest], made: dict[str, torch.Tensor | NoOutput]
    ) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield waveforms by request id; aborted requests get their `NoOutput` in `made`."""
        running = [each for each in requests if not self._cancelled(each, made, 0)]
        if not running:
            return
        with self.synthesizer.arithmetic():
            denoising = self.synthesizer.begin(running)
            for step in range(1, running[0].sampling.num_steps):
                denoising.step()
                gone = {each.request_id for each in running if self._cancelled(each, made, step)}
                running = [each for each in running if each.request_id not in gone]
                if not running:
                    return
                if gone:
                    denoising.drop(gone)
            yield from self.synthesizer.waveforms(running, denoising.mels())

    def _cancelled(self, request: SynthesisRequest, made: dict[str, torch.Tensor | NoOutput], step: int) -> bool:
        """Report `step` to the listener, 0 for the start; return True and note it in `made` if it drops the request."""
        if self.listener is None:
            return False
        try:
            if step:
                self.listener.on_step(request.request_id, step, request.sampling.num_steps - 1)
            else:
                self.listener.on_begin(request.request_id)
        except RequestCancelled:
            made[request.request_id] = NoOutput("it was aborted")
            return True
        return False

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> set[str]:
        loaded: set[str] = AutoWeightsLoader(self).load_weights(weights, mapper=self.hf_to_vllm_mapper)
        return loaded
