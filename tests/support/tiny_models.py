"""Small checkpoints of real architectures with random weights, as transformers saves them."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import load_file, save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

from omni_cli.checkpoints.tokenizer import training_text

_NUM_WORDS = 700
_PIXELS = {"shortest_edge": 16 * 16, "longest_edge": 128 * 128}
DECODER = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 32,
    "max_position_embeddings": 2048,
}
_CHAT = (
    "{% for m in messages %}<|start|>{{ m['role'] }}\n{{ m['content'] }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant\n{% endif %}"
)
_PARTS = (
    "{% for m in messages %}<|start|>{{ m['role'] }}\n"
    "{% if m['content'] is string %}{{ m['content'] }}{% else %}{% for c in m['content'] %}"
    "{% if c['type'] == 'text' %}{{ c['text'] }}IMAGEAUDIOVIDEO{% endif %}{% endfor %}{% endif %}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant\n{% endif %}"
)


def template_of(**marks: str) -> str:
    """A template that takes parts, and writes a mark for each medium."""
    branches = "".join(f"{{% elif c['type'] == '{kind}' %}}{mark}" for kind, mark in marks.items())
    return _PARTS.replace("IMAGEAUDIOVIDEO", branches)


def make_tokenizer(special: Sequence[str] = (), *, bos: bool = False, template: str = _CHAT) -> Any:
    words = ["<|pad|>", "<|begin|>", "<|start|>", "<|end|>", *special]
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=_NUM_WORDS,
        special_tokens=words,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    backend.train_from_iterator(training_text(num_words=_NUM_WORDS), trainer)
    if bos:  # written by the tokenizer, and by the template: one too many unless somebody looks
        from tokenizers.processors import TemplateProcessing

        backend.post_processor = TemplateProcessing(
            single="<|begin|> $A", special_tokens=[("<|begin|>", backend.token_to_id("<|begin|>"))]
        )
        template = "<|begin|>" + template
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=backend,
        bos_token="<|begin|>",
        eos_token="<|end|>",
        pad_token="<|pad|>",
        extra_special_tokens=list(special),
        chat_template=template,
        model_max_length=2048,
    )


def ids_of(tokenizer: Any) -> dict[str, int]:
    return {
        "vocab_size": len(tokenizer),
        "bos_token_id": tokenizer.bos_token_id,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
    }


def draw_weights(model: Any, *, embedding_std: float = 1.0) -> Any:
    """Draw weights large enough that an answer is not one token over and over."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            noise = torch.randn(weight.shape, generator=generator)
            if weight.ndim == 1:
                weight.add_(0.05 * noise)
            else:
                fan_in = weight.shape[-1] if weight.ndim <= 3 else weight[0].numel()
                weight.copy_(noise * (embedding_std if "embed" in name else 1.5 / fan_in**0.5))
    return model.float()


def _save(folder: Path, model: Any, processor: Any, *, embedding_std: float = 1.0) -> Path:
    draw_weights(model, embedding_std=embedding_std).save_pretrained(folder)
    processor.save_pretrained(folder)
    return folder


def _causal(name: str, tokenizer: Any, **config: Any) -> Any:
    """A language model of transformers: `{name}ForCausalLM`."""
    kind = getattr(transformers, f"{name}ForCausalLM")
    return kind(kind.config_class(**{**DECODER, **ids_of(tokenizer), **config}))


def qwen3(folder: Path) -> Path:
    """With a repetition penalty of its own, as the models of Qwen have."""
    tokenizer = make_tokenizer()
    model = _causal("Qwen3", tokenizer, tie_word_embeddings=False)
    model.generation_config.repetition_penalty = 1.3
    return _save(folder, model, tokenizer)


_TOOLS = (
    '{% if tools %}<|start|>system\nTools, to call as <tool_call>{"name": ..., "arguments": ...}</tool_call>:\n'
    "{% for t in tools %}{{ t | tojson }}\n{% endfor %}<|end|>\n{% endif %}"
    "{% for m in messages %}<|start|>{{ m['role'] }}\n{{ m['content'] or '' }}"
    "{% for c in m['tool_calls'] or [] %}<tool_call>{{ c['function'] | tojson }}</tool_call>{% endfor %}"
    "<|end|>\n{% endfor %}{% if add_generation_prompt %}<|start|>assistant\n"
    "{% if enable_thinking is false %}<think>\n\n</think>\n\n{% endif %}{% endif %}"
)


def tool_caller(folder: Path) -> Path:
    """With marks for reasoning, which its template can switch off, and for calls of tools, in the format of Qwen3."""
    tokenizer = make_tokenizer(template=_TOOLS)
    marks = ("<think>", "</think>", "<tool_call>", "</tool_call>")
    tokenizer.add_tokens([AddedToken(mark, special=False, normalized=False) for mark in marks])
    return _save(folder, _causal("Qwen3", tokenizer, tie_word_embeddings=False), tokenizer)


def llama(folder: Path, **changes: int) -> Path:
    """With a beginning-of-sequence token that both the tokenizer and the template write."""
    tokenizer = make_tokenizer(bos=True)
    return _save(folder, _causal("Llama", tokenizer, **changes), tokenizer)


def llama_int8(folder: Path) -> Path:
    """Linear layers of 8 bits, as compressed-tensors saves them."""
    llama(folder)
    weights = load_file(folder / "model.safetensors")
    for name in [name for name in weights if name.endswith("_proj.weight")]:
        scale = weights[name].abs().amax(dim=1, keepdim=True) / 127
        weights[name] = (weights[name] / scale).round().to(torch.int8)
        weights[f"{name}_scale"] = scale
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    values = {"num_bits": 8, "type": "int", "symmetric": True}
    group = {
        "targets": ["Linear"],
        "weights": {**values, "strategy": "channel", "dynamic": False},
        "input_activations": {**values, "strategy": "token", "dynamic": True},
    }
    quantization = {
        "quant_method": "compressed-tensors",
        "format": "int-quantized",
        "config_groups": {"group_0": group},
        "ignore": ["lm_head"],
    }
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "quantization_config": quantization}))
    return folder


def gemma3(folder: Path) -> Path:
    """Sliding and full attention by turns."""
    tokenizer = make_tokenizer(bos=True)
    layers = {"sliding_window": 16, "layer_types": ["sliding_attention", "full_attention"]}
    # The embeddings are the last layer as well: large ones would repeat the last token.
    return _save(folder, _causal("Gemma3", tokenizer, **layers), tokenizer, embedding_std=0.05)


def qwen3_moe(folder: Path) -> Path:
    experts = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 64, "norm_topk_prob": True}
    tokenizer = make_tokenizer()
    return _save(folder, _causal("Qwen3Moe", tokenizer, **experts, tie_word_embeddings=False), tokenizer)


def conditional(
    folder: Path,
    name: str,
    tokenizer: Any,
    config: dict[str, Any],
    processor: dict[str, Any],
    std: float = 1.0,
    processor_of: str = "",
) -> Path:
    """Save `{name}ForConditionalGeneration`, whose text has the sizes of `DECODER`, and its processor."""
    kind = getattr(transformers, f"{name}ForConditionalGeneration")
    text = {**DECODER, **ids_of(tokenizer), **config.pop("text_config", {})}
    made = kind(kind.config_class(text_config=text, **config))
    make_processor = getattr(transformers, f"{processor_of or name}Processor")
    media = make_processor(tokenizer=tokenizer, chat_template=tokenizer.chat_template, **processor)
    return _save(folder, made, media, embedding_std=std)


def idefics3(folder: Path, **encoder: int) -> Path:
    """Images, each as tiles. `encoder` are sizes of its own for the encoder."""
    tiles = [f"<row_{row}_col_{column}>" for row in range(1, 5) for column in range(1, 5)]
    special = ["<image>", "<fake_token_around_image>", "<global-img>", "<end_of_utterance>", *tiles]
    tokenizer = make_tokenizer(special, template=template_of(image="<image>"))
    vision = {
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "image_size": 64,
        "patch_size": 8,
        **encoder,
    }
    config = {
        "text_config": {"model_type": "llama"},
        "vision_config": vision,
        "image_token_id": tokenizer.convert_tokens_to_ids("<image>"),
        "scale_factor": 4,
        "pad_token_id": tokenizer.pad_token_id,
        "tie_word_embeddings": False,
    }
    images = transformers.Idefics3ImageProcessor(
        size={"longest_edge": 128}, max_image_size={"longest_edge": 64}, do_image_splitting=True
    )
    return conditional(folder, "Idefics3", tokenizer, config, {"image_processor": images, "image_seq_len": 4})


def qwen2_audio(folder: Path) -> Path:
    special = ["<|AUDIO|>", "<|audio_bos|>", "<|audio_eos|>"]
    tokenizer = make_tokenizer(special, template=template_of(audio="<|audio_bos|><|AUDIO|><|audio_eos|>"))
    audio = {
        "d_model": 64,
        "encoder_layers": 2,
        "encoder_attention_heads": 2,
        "encoder_ffn_dim": 128,
        "num_mel_bins": 80,
    }
    config = {
        "text_config": {"model_type": "qwen2"},
        "audio_config": audio,
        "audio_token_index": tokenizer.convert_tokens_to_ids("<|AUDIO|>"),
    }
    extractor = transformers.WhisperFeatureExtractor(feature_size=80)
    return conditional(folder, "Qwen2Audio", tokenizer, config, {"feature_extractor": extractor})


def _qwen_vl(folder: Path, name: str, rope: dict[str, object], vision: dict[str, object], videos: Any) -> Path:
    marks = {kind: f"<|vision_start|><|{kind}_pad|><|vision_end|>" for kind in ("image", "video")}
    special = ["<|image_pad|>", "<|video_pad|>", "<|vision_start|>", "<|vision_end|>"]
    tokenizer = make_tokenizer(special, template=template_of(**marks))
    names = ("image_token_id", "video_token_id", "vision_start_token_id", "vision_end_token_id")
    sizes = {"depth": 2, "hidden_size": 64, "intermediate_size": 128, "num_heads": 2, "patch_size": 8}
    config = {
        "text_config": {
            "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [6, 5, 5], **rope}
        },
        "vision_config": {**sizes, "out_hidden_size": DECODER["hidden_size"], **vision},
        **dict(zip(names, tokenizer.convert_tokens_to_ids(special), strict=True)),
        "tie_word_embeddings": False,
    }
    images = transformers.Qwen2VLImageProcessor(patch_size=8, merge_size=2, size=_PIXELS)
    return conditional(folder, name, tokenizer, config, {"image_processor": images, "video_processor": videos})


def qwen2_5_vl(folder: Path) -> Path:
    """Images and video, whose frame rate is part of the positions."""
    videos = transformers.Qwen2VLVideoProcessor(patch_size=8, merge_size=2, size=_PIXELS)
    vision = {"window_size": 32, "fullatt_block_indexes": [1]}
    return _qwen_vl(folder, "Qwen2_5_VL", {}, vision, videos)


def qwen3_vl(folder: Path) -> Path:
    """Images and video with times between their frames."""
    size = {"shortest_edge": 16 * 16, "longest_edge": 8 * 64 * 64}
    videos = transformers.Qwen3VLVideoProcessor(patch_size=8, merge_size=2, size=size)
    vision = {"num_position_embeddings": 64, "deepstack_visual_indexes": [0]}
    return _qwen_vl(folder, "Qwen3VL", {"mrope_interleaved": True}, vision, videos)


def whisper(folder: Path) -> Path:
    """Windows of 4 seconds, with the marks of languages that vLLM lists or not; some tokens are suppressed."""
    from transformers.models.whisper.tokenization_whisper import LANGUAGES
    from vllm.model_executor.models.whisper import ISO639_1_SUPPORTED_LANGS

    unlisted = [code for code in LANGUAGES if code not in ISO639_1_SUPPORTED_LANGS]
    often = {"en", "fr", "de", "es", "it", "nl"}
    codes = [code if code in often else unlisted.pop() for code in list(ISO639_1_SUPPORTED_LANGS)[: len(unlisted)]]
    languages = [f"<|{code}|>" for code in (*codes, *list(ISO639_1_SUPPORTED_LANGS)[len(codes) :])]
    tasks = ["<|translate|>", "<|transcribe|>"]
    special = ["<|startoftranscript|>", *languages, *tasks, "<|startofprev|>", "<|nospeech|>", "<|notimestamps|>"]
    backend = json.loads(make_tokenizer().backend_tokenizer.to_str())["model"]
    # All special tokens come after the words, and the times after them.
    words = [word for word in backend["vocab"] if not word.startswith("<|")]
    tokenizer = transformers.WhisperTokenizer(
        vocab={word: number for number, word in enumerate(words)},
        merges=[tuple(pair) for pair in backend["merges"]],
        **dict.fromkeys(("bos_token", "eos_token", "unk_token", "pad_token"), "<|endoftext|>"),
        extra_special_tokens=special,
    )
    tokenizer.add_tokens([AddedToken(f"<|{step * 0.02:.2f}|>", special=False) for step in range(201)])
    number = tokenizer.convert_tokens_to_ids
    ids = {"decoder_start_token_id": number("<|startoftranscript|>"), **ids_of(tokenizer)}
    sizes = {
        f"{side}_{name}": value
        for side in ("encoder", "decoder")
        for name, value in (("layers", 2), ("attention_heads", 2), ("ffn_dim", 128))
    }
    config = transformers.WhisperConfig(
        **sizes, **ids, d_model=64, max_source_positions=200, max_target_positions=64, tie_word_embeddings=True
    )
    model = transformers.WhisperForConditionalGeneration(config)
    del ids["vocab_size"]
    model.generation_config = transformers.GenerationConfig(
        **ids,
        max_length=64,
        is_multilingual=True,
        lang_to_id={mark: number(mark) for mark in languages},
        task_to_id={task.strip("<|>"): number(task) for task in tasks},
        no_timestamps_token_id=number("<|notimestamps|>"),
        prev_sot_token_id=number("<|startofprev|>"),
        max_initial_timestamp_index=50,
        alignment_heads=[[0, 1], [1, 0]],
        suppress_tokens=[*range(20, 60), *number(special)],
        begin_suppress_tokens=[*range(60, 200), tokenizer.eos_token_id],
    )
    extractor = transformers.WhisperFeatureExtractor(feature_size=80, chunk_length=4)
    return _save(folder, model, transformers.WhisperProcessor(extractor, tokenizer), embedding_std=0.3)


def qwen3_asr(folder: Path) -> Path:
    """Qwen3-ASR, whose answer begins with the language that it heard."""
    special = ["<|audio_start|>", "<|audio_pad|>", "<|audio_end|>", "<|im_start|>", "<|im_end|>"]
    template = template_of(audio="<|audio_start|><|audio_pad|><|audio_end|>")
    template = template.replace("<|start|>", "<|im_start|>").replace("<|end|>", "<|im_end|>")
    tokenizer = make_tokenizer(special, template=template)
    names = ("audio_bos_token", "audio_token", "audio_eos_token")
    tokenizer._set_model_specific_special_tokens(dict(zip(names, special[:3], strict=True)))
    tokenizer.add_tokens([AddedToken("<asr_text>", special=False)])
    number = tokenizer.convert_tokens_to_ids
    audio = {
        "d_model": 64,
        "encoder_layers": 2,
        "encoder_attention_heads": 2,
        "encoder_ffn_dim": 128,
        "output_dim": 64,
        "downsample_hidden_size": 16,
    }
    config = {
        "text_config": {"model_type": "qwen3"},
        "audio_config": audio,
        "audio_token_id": number("<|audio_pad|>"),
        "timestamp_token_id": number("<asr_text>"),
        "pad_token_id": tokenizer.pad_token_id,
        "eos_token_id": [tokenizer.eos_token_id, number("<|im_end|>")],
    }
    extractor = transformers.Qwen3ASRFeatureExtractor()
    return conditional(folder, "Qwen3ASR", tokenizer, config, {"feature_extractor": extractor}, std=0.3)


BUILDERS: dict[str, Callable[[Path], Path]] = {
    builder.__name__: builder
    for builder in (qwen3, llama, gemma3, qwen3_moe, idefics3, qwen2_audio, qwen2_5_vl, qwen3_vl)
}
# The others differ from these in degree.
OFTEN = ("llama", "qwen3_moe", "idefics3", "qwen2_audio", "qwen3_vl")
