#!/usr/bin/env bash
# Expected: Pyramid Attention Broadcast, which reuses attention of the step before, keeps it apart for the prompt and for the
#   negative prompt, as the caches of diffusers that have a state for each context do.
# Happens: diffusers 0.42.1 counts calls of each attention, not steps. A pipeline that calls the transformer once for the prompt
#   and once for the negative prompt, as Wan does, with a skip range of 2 computes attention for the former at every step, and
#   gives it to the latter: within the range of time steps both predictions are equal, so that guidance adds nothing. With 3,
#   each gets attention of the other. CogVideoX, which has both in one batch, is right. Nothing is raised or logged.
# Source: `new_forward` of `diffusers/hooks/pyramid_attention_broadcast.py`, line 156: one state for each attention, whatever
#   `cache_context` says. 37 pipelines have two contexts or more, among them those of Qwen-Image, LTX 2 and SkyReels, whose
#   models have `enable_cache`, too (read, not run).
# Why users care: videos follow the prompt less and the negative prompt hardly at all, which looks like the usual loss of such
#   a cache. With 2, nothing at all is reused from the step before.
# Exit code: 0 as described, 1 if the output is another one.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet torch==2.13.0 numpy==2.3.5 pillow==13.0.0 transformers==5.19.0 diffusers==0.42.1 ftfy==6.3.1
"$folder/venv/bin/python" - <<'PYTHON' 2>"$folder/errors" | tee "$folder/seen"
import diffusers
import torch

torch.manual_seed(0)
heads = {"num_attention_heads": 2, "attention_head_dim": 16, "in_channels": 4, "out_channels": 4, "num_layers": 2}
wan = diffusers.WanPipeline(
    None, None,
    vae=diffusers.AutoencoderKLWan(
        base_dim=4, z_dim=4, dim_mult=[1, 1, 1, 1], num_res_blocks=1, latents_mean=[0.0] * 4, latents_std=[1.0] * 4
    ),
    transformer=diffusers.WanTransformer3DModel(**heads, text_dim=16, freq_dim=32, ffn_dim=32, rope_max_seq_len=32),
    scheduler=diffusers.FlowMatchEulerDiscreteScheduler(shift=3.0),
)
cog = diffusers.CogVideoXPipeline(
    None, None,
    vae=diffusers.AutoencoderKLCogVideoX(block_out_channels=[8] * 4, latent_channels=4, layers_per_block=1, norm_num_groups=2),
    transformer=diffusers.CogVideoXTransformer3DModel(
        **heads, time_embed_dim=8, text_embed_dim=16, sample_width=4, sample_height=4, sample_frames=1, max_text_seq_length=8
    ),
    scheduler=diffusers.CogVideoXDDIMScheduler(),
)
embeds = 3 * torch.randn(2, 1, 8, 16)  # of the prompt and the negative one
for pipe in (wan, cog):
    pipe.set_progress_bar_config(disable=True)
    predictions = []
    for parameter in pipe.transformer.parameters():
        if parameter.ndim > 1:
            torch.nn.init.normal_(parameter, std=parameter[0].numel() ** -0.5)
    pipe.transformer.register_forward_hook(lambda *call, predictions=predictions: predictions.extend(call[2][0].unbind(0)))
    keys = {"height": 32, "width": 32, "num_frames": 1, "num_inference_steps": 20, "output_type": "latent"}
    keys |= {"prompt_embeds": embeds[0], "negative_prompt_embeds": embeds[1], "guidance_scale": 5.0}
    for skip in (None, 2, 3):
        if skip:
            pipe.transformer.enable_cache(
                diffusers.PyramidAttentionBroadcastConfig(
                    spatial_attention_block_skip_range=skip, cross_attention_block_skip_range=skip,
                    current_timestep_callback=lambda pipe=pipe: pipe.current_timestep,
                )
            )
        predictions.clear()
        pipe(generator=torch.Generator().manual_seed(0), **keys)
        pairs = list(zip(predictions[::2], predictions[1::2]))
        equal = sum((one - other).abs().max().item() < 1e-5 for one, other in pairs)
        within = sum(100 < step < 800 for step in pipe.scheduler.timesteps.tolist())
        name = type(pipe).__name__
        print(f"seen: {name}, skip range {skip}: {equal} of {len(pairs)} pairs equal, {within} in the range")
        if skip:
            pipe.transformer.disable_cache()
print(f"seen: diffusers {diffusers.__version__}")
PYTHON
diff <(grep "^seen" "$folder/seen") - <<'EXPECTED' || exit 1
seen: WanPipeline, skip range None: 0 of 20 pairs equal, 10 in the range
seen: WanPipeline, skip range 2: 10 of 20 pairs equal, 10 in the range
seen: WanPipeline, skip range 3: 7 of 20 pairs equal, 10 in the range
seen: CogVideoXPipeline, skip range None: 0 of 20 pairs equal, 13 in the range
seen: CogVideoXPipeline, skip range 2: 0 of 20 pairs equal, 13 in the range
seen: CogVideoXPipeline, skip range 3: 0 of 20 pairs equal, 13 in the range
seen: diffusers 0.42.1
EXPECTED
