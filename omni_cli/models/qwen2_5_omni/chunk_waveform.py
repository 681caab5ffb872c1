"""Audio of a chunk of codes, close to the same part of the whole waveform.

transformers' model makes a whole waveform of all codes; this runs its modules over some of them, from the same noise.
"""

from __future__ import annotations

import math

import torch
from torch import nn
from transformers.models.qwen2_5_omni.modeling_qwen2_5_omni import Qwen2_5OmniToken2WavModel, RungeKutta4ODESolver

# The vocoder's receptive field on either side of a frame: 16 frames differ from all by float32's rounding.
VOCODER_CONTEXT_FRAMES = 24


def codes_per_block(token2wav: Qwen2_5OmniToken2WavModel) -> int:
    """Codes in one block of the DiT's attention; context that starts with a block is computed as in the whole."""
    dit = token2wav.code2wav_dit_model
    return max(1, int(dit.block_size) // int(dit.repeats))


def chunk_waveform(
    token2wav: Qwen2_5OmniToken2WavModel,
    codes: torch.Tensor,
    *,
    codes_start: int,
    start: int,
    end: int,
    seed: int,
    speaker: torch.Tensor,
    reference_mel: torch.Tensor,
    num_steps: int,
    guidance_scale: float,
    sway_coefficient: float,
) -> torch.Tensor:
    """Samples (num_samples,) of codes [start, end) of a request; `codes` (1, num_codes) int64 begin at `codes_start`.

    `speaker` (1, enc_emb_dim), `reference_mel` (1, num_frames, mel_dim). Noise is drawn on the host, where the first
    rows do not depend on how many are drawn: those of the chunk are rows of the whole's.
    """
    dit, vocoder = token2wav.code2wav_dit_model, token2wav.code2wav_bigvgan_model
    first_frame, num_frames = codes_start * dit.repeats, codes.shape[1] * dit.repeats
    generator = torch.Generator().manual_seed(seed)
    noise = torch.randn((1, first_frame + num_frames, dit.mel_dim), generator=generator)[:, first_frame:]
    mel = denoise(
        dit, noise.to(codes.device), codes, speaker, reference_mel, num_steps, guidance_scale, sway_coefficient
    )
    # Of the frames around the chunk, only those in the vocoder's receptive field.
    begin = start * dit.repeats - first_frame
    heard = max(0, begin - VOCODER_CONTEXT_FRAMES)
    mel = mel[:, heard : end * dit.repeats - first_frame + VOCODER_CONTEXT_FRAMES]
    samples_per_frame = math.prod(vocoder.config.upsample_rates)
    skipped = (begin - heard) * samples_per_frame
    length = (end - start) * dit.repeats * samples_per_frame
    return vocoder(mel.permute(0, 2, 1)).reshape(-1)[skipped : skipped + length]


def denoise(
    dit: nn.Module,
    noise: torch.Tensor,
    codes: torch.Tensor,
    speaker: torch.Tensor,
    reference_mel: torch.Tensor,
    num_steps: int,
    guidance_scale: float,
    sway_coefficient: float,
) -> torch.Tensor:
    """Mel frames (1, num_frames, mel_dim) of `noise` of that shape: the arithmetic of the DiT's own `sample`."""
    is_guided = guidance_scale >= 1e-5
    conditions = {
        "quantized_code": codes,
        "speaker_embedding": speaker[:, None].expand(-1, noise.shape[1], -1),
        "condition_vector": reference_mel,
        "apply_cfg": is_guided,
    }

    def velocity(time: torch.Tensor, frames: torch.Tensor) -> torch.Tensor:
        predicted = dit(hidden_states=frames, time_step=time, **conditions)
        if not is_guided:
            return predicted
        guided, unguided = predicted.chunk(2)
        return guided + (guided - unguided) * guidance_scale

    times = torch.linspace(0, 1, num_steps, device=noise.device)
    times = times + sway_coefficient * (torch.cos(torch.pi / 2 * times) - 1 + times)
    return RungeKutta4ODESolver(velocity, noise).integrate(times)[-1]
