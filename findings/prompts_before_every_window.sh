#!/usr/bin/env bash
# Expected: with `prompt_condition_type="first-segment"`, the default, Whisper's long-form `generate` puts the prompt of
#   `prompt_ids` before the first window only, as the docstring of the argument says.
# Happens: transformers 5.19.0 and 5.24.0 put it before every window.
# Source: the decoder's input ids of each window of a sound of several windows, by a small random model.
# Why users care: a glossary as a prompt makes small models stop early. In every window it does so again and again: of a
#   recording of 93 s with tiny.en, "Glossary: Kubernetes, Prometheus." loses the first minute.
# Exit code: 0 as described, 1 if the output is another one.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet torch==2.13.0 numpy==2.3.5
for release in 5.19.0 5.24.0; do
  "$folder/venv/bin/pip" install --quiet transformers==$release
  "$folder/venv/bin/python" - <<'PYTHON' 2>>"$folder/errors"
import torch
import transformers

PROMPT, START = [60, 11, 12], 61
torch.manual_seed(0)
config = transformers.WhisperConfig(
    vocab_size=200, num_mel_bins=8, d_model=16, encoder_layers=1, decoder_layers=1, encoder_attention_heads=2,
    decoder_attention_heads=2, encoder_ffn_dim=16, decoder_ffn_dim=16, max_source_positions=50,
    max_target_positions=40, pad_token_id=62, bos_token_id=62, eos_token_id=62, decoder_start_token_id=START,
)
model = transformers.WhisperForConditionalGeneration(config).eval()
model.generation_config = transformers.GenerationConfig(
    eos_token_id=62, pad_token_id=62, decoder_start_token_id=START, no_timestamps_token_id=63, is_multilingual=False,
    prev_sot_token_id=60, max_initial_timestamp_index=5, max_length=40, suppress_tokens=[62],
)
prompted, run = [], model.generate_with_fallback


def note(**given):
    prompted.append(PROMPT[1:] in given["decoder_input_ids"][0].unfold(0, 2, 1).tolist())
    return run(**given)


model.generate_with_fallback = note
model.generate(
    torch.zeros(1, 8, 300), attention_mask=torch.ones(1, 300), return_timestamps=True, max_new_tokens=4,
    prompt_ids=torch.tensor(PROMPT), prompt_condition_type="first-segment",
)
words = ["with" if found else "without" for found in prompted]
print(f"transformers {transformers.__version__}: windows {', '.join(words)} the prompt")
PYTHON
done | tee "$folder/seen"
diff "$folder/seen" - <<'EXPECTED' || exit 1
transformers 5.19.0: windows with, with the prompt
transformers 5.24.0: windows with, with the prompt
EXPECTED
