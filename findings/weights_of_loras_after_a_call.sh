#!/usr/bin/env bash
# Expected: the weight that `set_adapters` gave to a LoRA holds until it is set again: a call with
#   `cross_attention_kwargs={"scale": 0.0}` is without the LoRA, and the next one as before it; `unfuse_lora` undoes `fuse_lora`.
# Happens: diffusers 0.42.1 with peft 0.21.2 sets the weight to 1 after a call with scale 0, whatever it was. After
#   `fuse_lora(lora_scale=0.5)` and `unfuse_lora()` it stays halved, and doing both again halves it again. Images of later
#   calls are other ones, and nothing is raised or logged. `disable_lora`, `enable_lora` and other scales leave it as it was.
# Source: `unscale_lora_layers` of `diffusers/utils/peft_utils.py`, line 150, where dividing by 0 is avoided by
#   `set_scale(adapter_name, 1.0)`; `_fuse_lora_apply` of `diffusers/loaders/peft.py`, line 685, multiplies by `lora_scale`,
#   and `_unfuse_lora_apply`, line 709, does not divide. Qwen-Image does the same after scale 0 (run).
# Why users care: a comparison with and without a LoRA changes the LoRA for everything that follows, for all users of a
#   server with one pipeline, and the images after it do not have their seed's and settings' values of before.
# Exit code: 0 as described, 1 if the output is another one.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet torch==2.13.0 numpy==2.3.5 pillow==13.0.0 transformers==5.19.0 diffusers==0.42.1 peft==0.21.2
"$folder/venv/bin/python" - <<'PYTHON' 2>"$folder/errors" | tee "$folder/seen"
import copy

import diffusers
import numpy
import peft
import torch

torch.manual_seed(0)
unet = diffusers.UNet2DConditionModel(
    block_out_channels=[8, 8], layers_per_block=1, norm_num_groups=4, cross_attention_dim=16, attention_head_dim=4,
    down_block_types=["DownBlock2D", "CrossAttnDownBlock2D"], up_block_types=["CrossAttnUpBlock2D", "UpBlock2D"],
    addition_embed_type="text_time", addition_time_embed_dim=8, projection_class_embeddings_input_dim=64,
)
vae = diffusers.AutoencoderKL(
    block_out_channels=[8, 8], norm_num_groups=4, down_block_types=["DownEncoderBlock2D"] * 2,
    up_block_types=["UpDecoderBlock2D"] * 2, force_upcast=False,
)
scheduler = diffusers.DDIMScheduler(steps_offset=1, clip_sample=False)
pipe = diffusers.StableDiffusionXLPipeline(vae, None, None, None, None, unet, scheduler)
pipe.set_progress_bar_config(disable=True)
trained = copy.deepcopy(unet)
layers = ["to_q", "to_k", "to_v", "to_out.0"]
trained.add_adapter(peft.LoraConfig(r=4, lora_alpha=4, init_lora_weights=False, target_modules=layers))
lora = {f"unet.{name}": 3 * tensor for name, tensor in peft.get_peft_model_state_dict(trained).items()}
pipe.load_lora_weights(lora, adapter_name="style")
keys = {"prompt_embeds": 3 * torch.randn(1, 8, 16), "pooled_prompt_embeds": 3 * torch.randn(1, 16), "output_type": "np"}
keys |= {"num_inference_steps": 4, "guidance_scale": 1.0, "height": 32, "width": 32}


def run(**others):
    return pipe(generator=torch.Generator().manual_seed(0), **keys, **others).images


by_weight = {}
for weight in (0.0, 0.075, 0.15, 0.3, 0.5, 1.0):
    pipe.set_adapters("style", weight)
    by_weight[weight] = run()


def weights_of(image):
    return [weight for weight, other in by_weight.items() if numpy.allclose(image, other, atol=1e-5)]


def scale(factor):
    scaled = run(cross_attention_kwargs={"scale": factor})
    print(f"seen: scale {factor}: weight {weights_of(scaled)}, then {weights_of(run())}")


def fuse():
    pipe.fuse_lora(lora_scale=0.5)
    fused = run()
    pipe.unfuse_lora()
    print(f"seen: fused by half: weight {weights_of(fused)}, then {weights_of(run())}")


print(f"seen: diffusers {diffusers.__version__}, peft {peft.__version__}")
pipe.set_adapters("style", 0.3)
scale(0.5)
scale(0.0)
pipe.set_adapters("style", 0.3)
fuse()
fuse()
PYTHON
diff <(grep "^seen" "$folder/seen") - <<'EXPECTED' || exit 1
seen: diffusers 0.42.1, peft 0.21.2
seen: scale 0.5: weight [0.15], then [0.3]
seen: scale 0.0: weight [0.0], then [1.0]
seen: fused by half: weight [0.15], then [0.15]
seen: fused by half: weight [0.075], then [0.075]
EXPECTED
