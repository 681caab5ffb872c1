#!/usr/bin/env bash
# Expected: a pipeline of diffusers that gets two prompts, an image for each and `num_images_per_prompt=2` makes two outputs
#   from the first prompt and its image, then two from the second prompt and its image.
# Happens: diffusers 0.42.1 repeats the prompts as A, A, B, B and the images as A, B, A, B: the second output is of prompt A
#   and image B, the third of prompt B and image A. Control images follow the prompts, so that in one call an output has
#   the control image of one entry and the image of the other. Nothing is raised or logged.
# Source: `prepare_latents` of `pipelines/controlnet/pipeline_controlnet_sd_xl_img2img.py`, line 972: `torch.cat` of the whole
#   batch, where `encode_prompt` and `prepare_control_image` repeat each entry. 39 more files in `pipelines` have that line
#   (read, not run), among them those of Flux Kontext, SD 3, Qwen-Image and Z-Image; only the oldest ones log a warning.
# Why users care: half of the edited images of a batch are of another user's or another row's image, in an order that is
#   plausible. With one image for each call, or `num_images_per_prompt=1`, all is well.
# Exit code: 0 as described, 1 if the output is another one.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet torch==2.13.0 numpy==2.3.5 pillow==13.0.0 transformers==5.19.0 diffusers==0.42.1
"$folder/venv/bin/python" - <<'PYTHON' 2>"$folder/errors" | tee "$folder/seen"
from itertools import product

import diffusers
import numpy
import torch
from PIL import Image

torch.manual_seed(0)
unet = diffusers.UNet2DConditionModel(
    block_out_channels=[8, 8], layers_per_block=1, norm_num_groups=4, cross_attention_dim=16, attention_head_dim=4,
    down_block_types=["DownBlock2D", "CrossAttnDownBlock2D"], up_block_types=["CrossAttnUpBlock2D", "UpBlock2D"],
    addition_embed_type="text_time", addition_time_embed_dim=8, projection_class_embeddings_input_dim=64,
)
controlnet = diffusers.ControlNetModel.from_unet(unet, conditioning_embedding_out_channels=[8, 8])
for parameter in controlnet.parameters():  # its last layers begin as zeros
    torch.nn.init.normal_(parameter, std=0.1)
vae = diffusers.AutoencoderKL(
    block_out_channels=[8, 8], norm_num_groups=4, down_block_types=["DownEncoderBlock2D"] * 2,
    up_block_types=["UpDecoderBlock2D"] * 2, force_upcast=False,
)
scheduler = diffusers.DDIMScheduler(steps_offset=1, clip_sample=False)
pipe = diffusers.StableDiffusionXLControlNetImg2ImgPipeline(vae, None, None, None, None, unet, controlnet, scheduler)
pipe.set_progress_bar_config(disable=True)
embeds, pooled = 3 * torch.randn(2, 8, 16), 3 * torch.randn(2, 16)
pixels = numpy.random.default_rng(0).integers(0, 256, (4, 32, 32, 3), numpy.uint8)
images, controls = [Image.fromarray(rows) for rows in pixels[:2]], [Image.fromarray(rows) for rows in pixels[2:]]


def run(prompt, image, control, seeds, count):
    keys = {"prompt_embeds": embeds[list(prompt)], "pooled_prompt_embeds": pooled[list(prompt)]}
    keys |= {"image": [images[i] for i in image], "control_image": [controls[i] for i in control], "strength": 0.8}
    keys |= {"num_images_per_prompt": count, "num_inference_steps": 5, "guidance_scale": 1.0, "output_type": "np"}
    return pipe(generator=[torch.Generator().manual_seed(seed) for seed in seeds], **keys).images


combinations = list(product((0, 1), repeat=3))
for seed, output in enumerate(run((0, 1), (0, 1), (0, 1), range(4), count=2)):
    # Each combination once, with the noise of this output.
    others = run(*zip(*combinations), [seed] * 8, count=1)
    distances = abs(others - output).max(axis=(1, 2, 3))
    prompt, image, control = ("AB"[i] for i in combinations[distances.argmin()])
    unique = sum(distances < 1e-4) == 1
    print(f"seen: output {seed} is that of prompt {prompt}, image {image}, control image {control}; of no other: {unique}")
print(f"seen: diffusers {diffusers.__version__}")
PYTHON
diff <(grep "^seen" "$folder/seen") - <<'EXPECTED' || exit 1
seen: output 0 is that of prompt A, image A, control image A; of no other: True
seen: output 1 is that of prompt A, image B, control image A; of no other: True
seen: output 2 is that of prompt B, image A, control image B; of no other: True
seen: output 3 is that of prompt B, image B, control image B; of no other: True
seen: diffusers 0.42.1
EXPECTED
