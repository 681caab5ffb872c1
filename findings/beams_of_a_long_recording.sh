#!/usr/bin/env bash
# Expected: each of several answers to one prompt, by `num_return_sequences` or `num_beams`, is to the whole of its recordings,
#   as it is to all of its images.
# Happens: transformers repeats the pieces of audio one by one, A, A, B, B, and the prompts as a whole. Voxtral, which gets a
#   recording of more than 30 seconds as several pieces, then gives its first answer to the first piece twice and the
#   second answer to the second piece twice; a search with two beams goes on with the first. Images are right in 5.19.0 and
#   5.24.0, as for LLaVA here, and mixed up alike in 4.57.6. Nothing is raised or logged.
# Source: `transformers/generation/utils.py` of 5.19.0: `_expand_inputs_for_generation`, line 1202, repeats each row;
#   `_expand_multimodal_outputs`, line 1124, groups those of images and videos alone. Qwen2-Audio and Audio Flamingo 3 of
#   5.19.0 and 5.24.0 do the same (run), others whose audio is rows of `input_features` would (read).
# Why users care: a transcript of a minute, made with beams for a better one, has its first half twice and nothing of the rest,
#   and samples of an answer about two recordings are each about one of them. Nothing shows it on clips of 30 seconds.
# Exit code: 0 as described, 1 if the output is another one.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet torch==2.13.0 numpy==2.3.5
for release in 4.57.6 5.19.0 5.24.0; do
  "$folder/venv/bin/pip" install --quiet transformers==$release
  "$folder/venv/bin/python" - <<'PYTHON' 2>>"$folder/errors"
from itertools import product

import torch
import transformers
from transformers import LlavaConfig, LlavaForConditionalGeneration, VoxtralConfig, VoxtralForConditionalGeneration

PLACE, PLACES = 24, 16  # the token that stands for audio or an image, and how many of it stand for one
layers = {"num_hidden_layers": 2, "num_attention_heads": 4, "hidden_size": 32}
language = layers | {"model_type": "llama", "intermediate_size": 64, "num_key_value_heads": 4, "vocab_size": 100}
audio = layers | {"intermediate_size": 128, "num_mel_bins": 16, "max_source_positions": 4 * PLACES}
vision = layers | {"model_type": "clip_vision_model", "intermediate_size": 64, "image_size": 32, "patch_size": 8}
torch.manual_seed(0)
voxtral = VoxtralForConditionalGeneration(VoxtralConfig(audio_config=audio, text_config=language, audio_token_id=PLACE))
config = LlavaConfig(vision_config=vision, text_config=language, image_token_index=PLACE, image_seq_length=PLACES)
llava = LlavaForConditionalGeneration(config)
ids = torch.tensor([[1, 2, *[PLACE] * 2 * PLACES, 3, 4]])
for model, name, shape in (
    (voxtral, "input_features", (16, 8 * PLACES)),
    (llava, "pixel_values", (3, 32, 32)),
):
    for parameter in model.eval().parameters():
        if parameter.ndim > 1:  # far enough from each other for an answer to show what it is to
            torch.nn.init.normal_(parameter, std=0.3)
    parts = 2 * torch.randn(2, *shape)

    def answer(order, model=model, name=name, parts=parts, **keys):
        keys |= {"attention_mask": torch.ones_like(ids), "pad_token_id": 0, "eos_token_id": 99, name: parts[list(order)]}
        return model.generate(ids, output_logits=True, return_dict_in_generate=True, **keys)

    orders = list(product((0, 1), repeat=2))
    alone = torch.cat([answer(order, max_new_tokens=1, do_sample=False).logits[0] for order in orders])
    both = answer((0, 1), max_new_tokens=1, do_sample=True, num_return_sequences=2).logits[0]
    heard = []
    for logits in both:
        distances = (alone - logits).abs().amax(1)
        assert (distances < 1e-4).sum() == 1, distances
        heard.append("".join("AB"[i] for i in orders[distances.argmin()]))
    found = [answer(order, max_new_tokens=12, num_beams=2, do_sample=False).sequences for order in ((0, 1), (0, 0))]
    print(
        f"transformers {transformers.__version__}: two answers of {type(model).__name__} to AB are to {' and '.join(heard)}; "
        f"beams answer AB and AA alike: {torch.equal(*found)}"
    )
PYTHON
done | tee "$folder/seen"
diff "$folder/seen" - <<'EXPECTED' || exit 1
transformers 4.57.6: two answers of VoxtralForConditionalGeneration to AB are to AA and BB; beams answer AB and AA alike: True
transformers 4.57.6: two answers of LlavaForConditionalGeneration to AB are to AA and BB; beams answer AB and AA alike: True
transformers 5.19.0: two answers of VoxtralForConditionalGeneration to AB are to AA and BB; beams answer AB and AA alike: True
transformers 5.19.0: two answers of LlavaForConditionalGeneration to AB are to AB and AB; beams answer AB and AA alike: False
transformers 5.24.0: two answers of VoxtralForConditionalGeneration to AB are to AA and BB; beams answer AB and AA alike: True
transformers 5.24.0: two answers of LlavaForConditionalGeneration to AB are to AB and AB; beams answer AB and AA alike: False
EXPECTED
