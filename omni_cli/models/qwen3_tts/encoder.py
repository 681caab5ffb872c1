"""Codes and voice embeddings of recordings, for cloned voices: Mimi's encoder, and an ECAPA-TDNN on mel frames."""

from __future__ import annotations

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from safetensors import safe_open
from torch import nn
from transformers import MimiModel
from transformers.audio_utils import mel_filter_bank
from transformers.models.qwen2_5_omni.modeling_qwen2_5_omni import ECAPA_TimeDelayNet

from omni_cli.checkpoints.derive import read_config
from omni_cli.checkpoints.files import weight_files
from omni_cli.checkpoints.shards import lacking
from omni_cli.models.qwen3_tts.family import SPEECH_TOKENIZER
from omni_cli.models.qwen3_tts.modules import SpeechTokenizerConfig, rename
from omni_cli.requests.encoding import resample

# Sizes of a voice encoder where a checkpoint's `speaker_encoder_config` names no others.
VOICE_SIZES: dict[str, Any] = {
    "mel_dim": 128,
    "enc_dim": 1024,
    "enc_channels": [512, 512, 512, 512, 1536],
    "enc_kernel_sizes": [5, 3, 3, 3, 1],
    "enc_dilations": [1, 2, 3, 4, 1],
    "enc_attention_channels": 128,
    "enc_res2net_scale": 8,
    "enc_se_channels": 128,
}
_RATE, _SAMPLES_PER_FRAME = 24_000, 1920
_ALL_POSITIONS = 1 << 30
_WINDOW, _HOP, _NUM_MELS = 1024, 256, 128


class VoiceEncoder:
    """The encoders of a checkpoint in `folder`, in float32 on the CPU. Raises `CheckpointError` for missing weights.

    Recordings are float32 samples (num_samples,) at any rate in Hz.
    """

    def __init__(self, folder: str | Path) -> None:
        config = SpeechTokenizerConfig.from_pretrained(Path(folder, SPEECH_TOKENIZER))
        self._num_codebooks = config.encoder_valid_num_quantizers
        # transformers 4.57.3, which the publisher's package needs, lets each position see all before it.
        config.encoder_config.sliding_window = _ALL_POSITIONS
        self._mimi: Any = MimiModel._from_config(config.encoder_config, dtype=torch.float32)
        self._mimi.decoder = self._mimi.decoder_transformer = self._mimi.upsample = None
        load_part(self._mimi, Path(folder, SPEECH_TOKENIZER), "encoder.")
        sizes = VOICE_SIZES | (read_config(Path(folder)).get("speaker_encoder_config") or {})
        self._voice = load_part(ECAPA_TimeDelayNet(SimpleNamespace(**sizes)), Path(folder), "speaker_encoder.")
        filters = mel_filter_bank(_WINDOW // 2 + 1, _NUM_MELS, 0.0, _RATE / 2, _RATE, norm="slaney", mel_scale="slaney")
        self._filters = torch.from_numpy(filters).float().T

    @torch.inference_mode()
    def encode(self, samples: np.ndarray, rate: int) -> torch.Tensor:
        """Return the codes (num_frames, num_codebooks) int64 of a recording."""
        sound = _resample(samples, rate)
        codes: torch.Tensor = self._mimi.encode(sound[None, None], num_quantizers=self._num_codebooks).audio_codes[0]
        return codes[:, : -(-len(sound) // _SAMPLES_PER_FRAME)].T.clone()

    @torch.inference_mode()
    def embed(self, samples: np.ndarray, rate: int) -> torch.Tensor:
        """Return the embedding (hidden_size,) float32 of the voice in a recording."""
        padding = (_WINDOW - _HOP) // 2
        sound = nn.functional.pad(_resample(samples, rate)[None], (padding, padding), mode="reflect")
        window = torch.hann_window(_WINDOW)
        spectrum = torch.stft(sound, _WINDOW, _HOP, window=window, center=False, return_complex=True)
        loudness = torch.sqrt(torch.view_as_real(spectrum).square().sum(-1) + 1e-9)
        mels = torch.log((self._filters @ loudness).clamp(min=1e-5))
        embedding: torch.Tensor = self._voice(mels.transpose(1, 2))[0]
        return embedding.clone()


def _resample(samples: np.ndarray, rate: int) -> torch.Tensor:
    """Return samples at the models' rate, as many as the publisher's resampler makes of them."""
    length = math.ceil(len(samples) * (_RATE / rate))
    sound = resample(np.ascontiguousarray(samples, np.float32), rate, _RATE)[:length]
    return torch.from_numpy(np.pad(sound, (0, length - len(sound))))


def load_part(module: nn.Module, folder: Path, prefix: str) -> nn.Module:
    """Load the weights called `prefix...` as float32. Raises `CheckpointError` if any is missing."""
    state: dict[str, torch.Tensor] = {}
    for file in weight_files(folder):
        with safe_open(file, framework="pt") as weights:
            names = [name for name in weights.keys() if name.startswith(prefix)]  # noqa: SIM118 - it is no mapping
            state |= {rename(name.removeprefix(prefix)): weights.get_tensor(name).float() for name in names}
    missing = module.load_state_dict(state, strict=False).missing_keys
    if missing:
        raise lacking(folder, [prefix + name for name in missing])
    return module.eval()
