#!/usr/bin/env bash
# Expected: Qwen3-TTS's 12 Hz decoder is causal and is decoded in pieces with context, so that whole and in pieces it gives
#   the same waveform, however long the speech is.
# Happens: the package decodes 300 frames (24 s) at a time with 25 frames before them as context. The decoder's transformer
#   looks back over 72 frames in each layer, so that from frame 300 on the waveform is another one; before it, it is equal.
# Source: qwen-tts 0.1.1, `Qwen3TTSTokenizerV2Decoder.chunked_decode`, which `decode` of the tokenizer calls.
# Why users care: speech of more than 24 s differs at each seam from that of a server which keeps the decoder's state, so
#   that a comparison of waveforms holds for the first 300 frames only.
# Exit code: 0 as described, 1 if the output is another one.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
pip="$folder/venv/bin/pip"
"$pip" install --quiet torch==2.13.0 numpy==2.3.5 transformers==4.57.3 accelerate==1.12.0 librosa==0.11.0 soundfile==0.13.1 einops==0.8.1
"$pip" install --quiet --no-deps qwen-tts==0.1.1
"$folder/venv/bin/python" - <<'PYTHON' >"$folder/seen" 2>"$folder/errors"
import sys
from importlib.machinery import ModuleSpec
from types import ModuleType

import torch
import transformers  # noqa: F401

# Of the package's other tokenizer.
for name in ("torchaudio", "torchaudio.compliance", "torchaudio.compliance.kaldi", "sox", "onnxruntime"):
    sys.modules[name] = ModuleType(name)
    sys.modules[name].__spec__ = ModuleSpec(name, None)
sys.modules["torchaudio.compliance"].kaldi = sys.modules["torchaudio.compliance.kaldi"]
sys.modules["torchaudio"].compliance = sys.modules["torchaudio.compliance"]
from qwen_tts.core.tokenizer_12hz import configuration_qwen3_tts_tokenizer_v2, modeling_qwen3_tts_tokenizer_v2

torch.manual_seed(0)
sizes = {"hidden_size": 32, "latent_dim": 32, "codebook_dim": 32, "intermediate_size": 64, "decoder_dim": 32}
layers = {"num_attention_heads": 2, "num_key_value_heads": 2, "num_hidden_layers": 2, "layer_scale_initial_scale": 1.0}
config = configuration_qwen3_tts_tokenizer_v2.Qwen3TTSTokenizerV2DecoderConfig(codebook_size=64, **sizes, **layers)
decoder = modeling_qwen3_tts_tokenizer_v2.Qwen3TTSTokenizerV2Decoder(config).eval()
for name, weight in decoder.named_parameters():
    if weight.dim() > 1:
        torch.nn.init.normal_(weight, std=1.0 if "embedding_sum" in name else 0.6 * weight[0].numel() ** -0.5)
codes = torch.randint(0, 64, (1, 16, 400))
with torch.no_grad():
    whole, pieces = decoder(codes)[0, 0], decoder.chunked_decode(codes)[0, 0]
seam = 300 * 1920
for part, samples in (("before", slice(seam)), ("from", slice(seam, None))):
    difference = (whole[samples] - pieces[samples]).abs().max() / whole.abs().max()
    sys.__stdout__.write(f"{part} frame 300: {'equal' if difference < 1e-4 else 'not equal'}\n")
PYTHON
grep "frame 300" "$folder/seen" | tee "$folder/lines"
diff "$folder/lines" - <<'EXPECTED' || exit 1
before frame 300: equal
from frame 300: not equal
EXPECTED
