#!/usr/bin/env bash
# Expected: AudioLDM2, given two prompts and `num_waveforms_per_prompt=2`, returns the two sounds of the first prompt, ranked by
#   how well they match it, then those of the second; a prompt has the sound of its seed whatever is beside it.
# Happens: where librosa is installed, diffusers 0.42.1 ranks the sounds of all prompts for each of them and returns the
#   first two: sounds of the second prompt in the first's place, some twice and some not at all. The same prompt twice gives
#   two sounds for four, each twice. Without librosa they are as expected, unranked. In both cases a prompt beside a longer
#   one has another sound than alone. Nothing is raised or logged.
# Source: `pipelines/audioldm2/pipeline_audioldm2.py`: `score_waveforms`, line 698, sorts whole rows of `logits_per_text`,
#   which are prompts x all sounds; `generate_language_model`, line 321, takes the last state, that of the padding where a
#   prompt is shorter than another one. MusicLDM has the lines of the former (read, not run).
# Why users care: a batch of similar prompts returns sounds that were made from other rows as theirs, after librosa was
#   installed for anything else, and a seed does not bring back the sound of a batch. One prompt for each call is right.
# Exit code: 0 as described, 1 if the output is another one.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
packages=(torch==2.13.0 numpy==2.3.5 pillow==13.0.0 transformers==5.19.0 diffusers==0.42.1)
"$folder/venv/bin/pip" install --quiet "${packages[@]}"
cat >"$folder/run.py" <<'PYTHON'
import string

import diffusers
import torch
import transformers
from diffusers.utils import is_librosa_available

torch.manual_seed(0)
letters = ["▁", *string.ascii_lowercase]
words = {token: index for index, token in enumerate(["<s>", "<pad>", "</s>", "<unk>", "<mask>", "Ġ", *letters[1:]])}
pieces = [("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0), *((letter, -3.0) for letter in letters)]
bands = {"patch_embeds_hidden_size": 16, "depths": [2, 2], "num_attention_heads": [2, 2], "hidden_size": 32}
text = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32, "vocab_size": 64}
clap = transformers.ClapConfig(text_config=text, audio_config=bands, projection_dim=32)
t5 = transformers.T5Config(vocab_size=64, d_model=32, d_kv=16, d_ff=32, num_layers=2, num_heads=2)
gpt2 = transformers.GPT2Config(vocab_size=64, n_positions=256, n_embd=16, n_layer=2, n_head=2, bos_token_id=1, eos_token_id=2)
vocoder = transformers.SpeechT5HifiGanConfig(
    model_in_dim=8, upsample_initial_channel=16, upsample_rates=[2, 2], upsample_kernel_sizes=[4, 4],
    resblock_kernel_sizes=[3], resblock_dilation_sizes=[[1, 3]], normalize_before=False,
)
pipe = diffusers.AudioLDM2Pipeline(
    vae=diffusers.AutoencoderKL(
        in_channels=1, out_channels=1, block_out_channels=[8, 8], norm_num_groups=4,
        down_block_types=["DownEncoderBlock2D"] * 2, up_block_types=["UpDecoderBlock2D"] * 2,
    ),
    text_encoder=transformers.ClapModel(clap).eval(),
    text_encoder_2=transformers.T5EncoderModel(t5).eval(),
    projection_model=diffusers.AudioLDM2ProjectionModel(32, 32, 16),
    language_model=transformers.GPT2LMHeadModel(gpt2).eval(),
    tokenizer=transformers.RobertaTokenizer(vocab=words, merges=[], model_max_length=77),
    tokenizer_2=transformers.T5Tokenizer(vocab=pieces, model_max_length=77, extra_ids=0),
    feature_extractor=transformers.ClapFeatureExtractor(truncation="rand_trunc"),
    unet=diffusers.AudioLDM2UNet2DConditionModel(
        block_out_channels=[8, 16], layers_per_block=1, norm_num_groups=8, attention_head_dim=4,
        cross_attention_dim=[[None, 16, 32, 32]] * 2, down_block_types=["DownBlock2D", "CrossAttnDownBlock2D"],
        up_block_types=["CrossAttnUpBlock2D", "UpBlock2D"],
    ),
    scheduler=diffusers.DDIMScheduler(),
    vocoder=transformers.SpeechT5HifiGan(vocoder).eval(),
)
pipe.set_progress_bar_config(disable=True)
for model in (pipe.text_encoder.audio_model, pipe.vocoder):
    for parameter in model.parameters():
        if parameter.ndim > 1:  # far enough from each other for ranks not to depend on rounding
            torch.nn.init.normal_(parameter, std=0.2)


def run(prompts, seeds, count):
    keys = {"audio_length_in_s": 0.2, "max_new_tokens": 4, "num_inference_steps": 4, "guidance_scale": 1.0}
    generator = [torch.Generator().manual_seed(seed) for seed in seeds]
    return pipe(prompts, generator=generator, num_waveforms_per_prompt=count, **keys).audios


for prompts in (["rain", "wind"], ["rain", "rain"]):
    alone = [run(prompts[seed // 2], [seed], 1)[0] for seed in range(4)]
    names = ["A0", "A1", "B2", "B3"]  # of which prompt, and the noise
    found = []
    for sound in run(prompts, range(4), 2):
        distances = [abs(sound - other).max() / abs(other).max() for other in alone]
        assert sum(distance < 1e-3 for distance in distances) == 1, distances
        found.append(names[min(range(4), key=distances.__getitem__)])
    print(f"librosa {is_librosa_available()}: {' and '.join(prompts)}, two each: {found[:2]} and {found[2:]}")
alone = run(["rain"], [0], 1)[0]
for other in ("wind", "a dog barks at the wind"):
    difference = abs(run(["rain", other], [0, 1], 1)[0] - alone).max() / abs(alone).max()
    print(f"librosa {is_librosa_available()}: rain beside {other} is as alone: {difference < 1e-3}")
PYTHON
"$folder/venv/bin/python" "$folder/run.py" 2>"$folder/errors" | tee "$folder/seen"
"$folder/venv/bin/pip" install --quiet librosa==0.11.0
"$folder/venv/bin/python" "$folder/run.py" 2>>"$folder/errors" | tee -a "$folder/seen"
diff "$folder/seen" - <<'EXPECTED' || exit 1
librosa False: rain and wind, two each: ['A0', 'A1'] and ['B2', 'B3']
librosa False: rain and rain, two each: ['A0', 'A1'] and ['B2', 'B3']
librosa False: rain beside wind is as alone: True
librosa False: rain beside a dog barks at the wind is as alone: False
librosa True: rain and wind, two each: ['B3', 'A1'] and ['B3', 'A1']
librosa True: rain and rain, two each: ['B3', 'A1'] and ['B3', 'A1']
librosa True: rain beside wind is as alone: True
librosa True: rain beside a dog barks at the wind is as alone: False
EXPECTED
