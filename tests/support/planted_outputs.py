"""A fault in what a stage makes, for tests of what `omni verify` says of it: runs first in each Python of a command.

`PLANTED_OUTPUT` is the name of a fault. It is planted in the process of the stage that it is for, or of that which
`PLANTED_STAGE` names, around the loading of the stage; the process of the reference loads none.
"""

import os

from omni_cli.engine.process import stage_process


def _changed_stage(spec, **values):
    import dataclasses

    stage = spec.stage.model_copy(update=values)
    stage.__pydantic_private__ = spec.stage.__pydantic_private__
    return dataclasses.replace(spec, stage=stage)


def _runner(stage):
    return stage.engine.engine_core.engine_core.model_executor.driver_worker.worker.model_runner


def _weight(stage):
    """Multiply a weight of the language model's first layer by 1.01; those of linear layers are packed on a CPU."""
    import torch

    parameters = _runner(stage).get_model().named_parameters()
    norms = ("post_attention_layernorm", "final_layer_norm")
    texts = ((name, weight) for name, weight in parameters if "audio_tower" not in name and "visual" not in name)
    weight = next(weight for name, weight in texts if any(norm in name for norm in norms))
    with torch.no_grad():
        weight.mul_(1.01)


def _rope_base(spec):
    from vllm.model_executor.layers.rotary_embedding.base import RotaryEmbeddingBase

    compute = RotaryEmbeddingBase._compute_inv_freq
    RotaryEmbeddingBase._compute_inv_freq = lambda self, base: compute(self, 1.3 * base)
    return spec


def _positions_after_an_image(stage):
    runner = _runner(stage)
    initialize = type(runner)._init_mrope_positions

    def shifted(self, state):
        initialize(self, state)
        if state.mm_features:
            state.mrope_positions[:, -4:] += 1
            state.mrope_position_delta += 1

    type(runner)._init_mrope_positions = shifted


def _cache_without_images(spec):
    from vllm.v1.core import kv_cache_utils

    kv_cache_utils._gen_mm_extra_hash_keys = lambda request, start, end, index: ([], index)
    return spec


def _neighbour(stage):
    """Give the second request of a batch the hidden states of the first."""
    model = _runner(stage).get_model()
    compute = model.compute_logits

    def leaking(hidden_states, *args, **kwargs):
        if len(hidden_states) > 1:
            hidden_states = hidden_states.clone()
            hidden_states[1] = hidden_states[0]
        return compute(hidden_states, *args, **kwargs)

    model.compute_logits = leaking


def _lost(stage, kind):
    """Lose the second chunk of each request."""
    step, seen = stage.step, {}

    def losing():
        kept = []
        for report in step():
            if type(report).__name__ == kind:
                seen[report.request_id] = seen.get(report.request_id, 0) + 1
                if seen[report.request_id] == 2:
                    continue
            kept.append(report)
        return kept

    stage.step = losing


def _sampling(stage, **values):
    make = stage.sampling_params

    def other(request, **extra):
        params = make(request, **extra)
        for name, value in values.items():
            if name != "include_stop_str_in_output" or params.stop:
                setattr(params, name, value)
        return params

    stage.sampling_params = other


def _usage(stage):
    finish = stage.finish

    def one_more(active, output):
        report = finish(active, output)
        report.trace["num_input_tokens"] += 1
        return report

    stage.finish = one_more


def _vae_dtype(stage):
    import torch

    vae = stage.executor.pipeline.vae
    decode = vae.decode

    def narrow(latents, *args, **kwargs):
        vae.to(torch.bfloat16)
        output = decode(latents.to(torch.bfloat16), *args, **kwargs)
        vae.to(torch.float32)
        return (output[0].float(), *output[1:])

    vae.decode = narrow


def _fixed_cuts(spec):
    """Begin each window where the one before ends, as for windows that are cut and joined as if each were alone."""
    from omni_cli.models.transcription.long_form import TimeTokens

    read = TimeTokens.read_window
    TimeTokens.read_window = lambda *given: (read(*given)[0], given[-1])
    return spec


def _nothing(_):
    pass


def _same(spec):
    return spec


# By name: the stage, what is done to its specification before it loads, and to the stage afterwards.
_FAULTS = {
    "weight": ("model", _same, _weight),
    "thinker weight": ("thinker", _same, _weight),
    "talker weight": ("talker", _same, _weight),
    "rope base": ("model", _rope_base, _nothing),
    "positions after an image": ("thinker", _same, _positions_after_an_image),
    "cache without images": ("thinker", _cache_without_images, _nothing),
    "neighbour": ("model", _same, _neighbour),
    "lost text": ("model", _same, lambda stage: _lost(stage, "TextDelta")),
    "lost audio": ("token2wav", _same, lambda stage: _lost(stage, "AudioChunk")),
    "seed": ("model", _same, lambda stage: _sampling(stage, seed=0)),
    "stop string": ("model", _same, lambda stage: _sampling(stage, include_stop_str_in_output=True)),
    "usage": ("model", _same, _usage),
    "fewer steps": ("token2wav", lambda spec: _changed_stage(spec, num_inference_steps=9), _nothing),
    "vae dtype": ("image", _same, _vae_dtype),
    "fixed cuts": ("transcriber", _fixed_cuts, _nothing),
}
_name, _before, _after = _FAULTS[os.environ["PLANTED_OUTPUT"]]
_name = os.environ.get("PLANTED_STAGE", _name)
_load = stage_process.load_stage


def _planted(spec, emit):
    if spec.stage.name != _name:
        return _load(spec, emit)
    stage = _load(_before(spec), emit)
    _after(stage)
    return stage


# Looked up there by this name.
stage_process.load_stage = _planted
