"""Small checkpoints with random weights of the architectures that vLLM transcribes with."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import transformers
from safetensors.torch import load_file, save_file
from tokenizers import AddedToken
from torch import nn

from omni_cli.checkpoints.resolve import resolve_model
from support.tiny_models import DECODER, conditional, draw_weights, ids_of, make_tokenizer, qwen3_asr, template_of
from support.tiny_voxtral import voxtral_realtime

_ENCODER = {"num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 2, "hidden_size": 64}


def glm_asr(folder: Path) -> Path:
    special = ["<|begin_of_audio|>", "<|end_of_audio|>"]
    tokenizer = make_tokenizer(special, template=template_of(audio="<|begin_of_audio|><|pad|><|end_of_audio|>"))
    config: dict[str, Any] = {
        "text_config": {"model_type": "llama"},
        # Four frames are one of the projector.
        "audio_config": {**_ENCODER, "intermediate_size": 256},
        "audio_token_id": tokenizer.pad_token_id,
    }
    extractor = transformers.WhisperFeatureExtractor(feature_size=128)
    return conditional(folder, "GlmAsr", tokenizer, config, {"feature_extractor": extractor}, std=0.3)


def kimi_audio(folder: Path) -> Path:
    """Kimi-Audio, whose tokens have the ids of the release: vLLM knows them by number."""
    folder.mkdir(parents=True, exist_ok=True)
    words = [bytes([byte]) for byte in range(256)]
    ranks = [f"{base64.b64encode(word).decode()} {rank}" for rank, word in enumerate(words)]
    (folder / "tiktoken.model").write_text("\n".join(ranks))
    special = {
        "<|im_msg_end|>": 151645,
        "<|im_media_begin|>": 151661,
        "<|im_media_end|>": 151663,
        "<|im_kimia_text_blank|>": 151666,
        "<|im_kimia_user_msg_start|>": 151670,
        "<|im_kimia_assistant_msg_start|>": 151671,
    }
    added = {str(number): {"content": name} for name, number in special.items()}
    (folder / "tokenizer_config.json").write_text(json.dumps({"added_tokens_decoder": added}))
    sizes = {**DECODER, "vocab_size": 151_680, "tie_word_embeddings": False}
    model = draw_weights(transformers.Qwen2ForCausalLM(transformers.Qwen2Config(**sizes)), embedding_std=0.3)
    heads = model.lm_head.weight.data
    heads[256:] = 0  # nothing but bytes
    width = sizes["hidden_size"]
    adaptor = _adaptor(4 * width, width, last=3)
    state = {f"model.vq_adaptor.layers.{name}": weight for name, weight in adaptor.state_dict().items()}
    save_file({**model.state_dict(), **state}, folder / "model.safetensors", metadata={"format": "pt"})
    config = {"architectures": ["MoonshotKimiaForCausalLM"], "kimia_adaptor_input_dim": 4 * width}
    (folder / "config.json").write_text(json.dumps({**model.config.to_dict(), **config, "dtype": "float32"}))
    _whisper(width).save_pretrained(folder / "whisper-large-v3")
    transformers.WhisperFeatureExtractor(feature_size=80).save_pretrained(folder / "whisper-large-v3")
    return folder


def _adaptor(size: int, width: int, last: int = 2) -> nn.Module:
    layers = {"0": nn.Linear(size, width), str(last): nn.Linear(width, width), str(last + 1): nn.LayerNorm(width)}
    return draw_weights(nn.ModuleDict(layers))


def _whisper(width: int) -> transformers.WhisperForConditionalGeneration:
    """Make a Whisper for its encoder."""
    sides = {f"{side}_{name}": 2 for side in ("encoder", "decoder") for name in ("layers", "attention_heads")}
    whisper = transformers.WhisperConfig(
        **sides, d_model=width, encoder_ffn_dim=128, decoder_ffn_dim=64, vocab_size=16, num_mel_bins=80,
        pad_token_id=0, bos_token_id=0, eos_token_id=0, decoder_start_token_id=0,
    )  # fmt: skip
    return draw_weights(transformers.WhisperForConditionalGeneration(whisper))


def qwen3_asr_realtime(folder: Path) -> Path:
    """Qwen3-ASR under the name with which vLLM has it for streams of sound."""
    qwen3_asr(folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "architectures": ["Qwen3ASRRealtimeGeneration"]}))
    return folder


def forced_aligner(folder: Path) -> Path:
    """Qwen3's forced aligner, whose template writes two marks after each word."""
    qwen3_asr(folder)
    config = transformers.Qwen3ASRConfig.from_pretrained(folder)
    config.num_labels = 50
    model = draw_weights(transformers.Qwen3ASRForTokenClassification(config), embedding_std=0.3)
    # What is said at a mark is read from what is before it alone.
    model.get_input_embeddings().weight.data[config.timestamp_token_id] = 0
    model.save_pretrained(folder)
    sound = "<|audio_start|><|audio_pad|><|audio_end|>"
    mark = "<asr_text>"
    (folder / "chat_template.jinja").write_text(
        "{% for c in messages[0]['content'] %}{% if c['type'] == 'text' %}{{ c['text'] }}"
        f"{mark}{mark}{{% else %}}{sound}{{% endif %}}{{% endfor %}}"
    )
    return folder


def granite_speech(folder: Path, name: str = "GraniteSpeech", **encoder: Any) -> Path:
    tokenizer = make_tokenizer(["<|audio|>"], template=template_of(audio="<|audio|>"))
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2}
    width = 64 * (1 + len(encoder.get("cat_hidden_layers", ())))
    own = {"num_layers": 2, "hidden_dim": 64, "num_heads": 2, "output_dim": 16, "context_size": 50, **encoder}
    config: dict[str, Any] = {
        "text_config": {"model_type": "granite"},
        "encoder_config": own,
        "projector_config": {**sizes, "encoder_hidden_size": width, "vocab_size": 16},
        "audio_token_index": tokenizer.convert_tokens_to_ids("<|audio|>"),
        "has_lora_adapter": False,
        "tie_word_embeddings": False,
    }
    processor = {"audio_processor": transformers.GraniteSpeechFeatureExtractor()}
    return conditional(folder, name, tokenizer, config, processor, std=0.3, processor_of="GraniteSpeech")


def granite_speech_plus(folder: Path) -> Path:
    """Granite Speech with the rows of a further layer of the encoder."""
    return granite_speech(folder, "GraniteSpeechPlus", cat_hidden_layers=[1])


def fire_red_asr2(folder: Path) -> Path:
    from vllm.model_executor.models import conformer_encoder

    tokenizer = make_tokenizer(["<|AUDIO|>"])
    tokenizer.save_pretrained(folder)
    sizes = {**DECODER, **ids_of(tokenizer), "tie_word_embeddings": False}
    model = draw_weights(transformers.Qwen2ForCausalLM(transformers.Qwen2Config(**sizes)), embedding_std=0.3)
    conformer = {"idim": 80, "n_layers_enc": 2, "n_head": 2, "d_model": 32, "kernel_size": 5, "pe_maxlen": 1000}
    with mock.patch.object(conformer_encoder, "ReplicatedLinear", _plain_linear):
        encoder = draw_weights(conformer_encoder.ConformerEncoder(**conformer))
    width = sizes["hidden_size"]
    projector = draw_weights(nn.ModuleDict({"linear1": nn.Linear(2 * 32, width), "linear2": nn.Linear(width, width)}))
    parts = {"llm": model, "encoder": encoder, "encoder_projector": projector}
    state = {f"{part}.{name}": each for part, of in parts.items() for name, each in of.state_dict().items()}
    save_file(state, folder / "model.safetensors", metadata={"format": "pt"})
    own = {"architectures": ["FireRedASR2ForConditionalGeneration"], "audio_encoder_conf": conformer}
    config = {**model.config.to_dict(), **own, "encoder_downsample_rate": 2, "dtype": "float32"}
    (folder / "config.json").write_text(json.dumps(config))
    extractor = {"feature_extractor_type": "FireRedASR2FeatureExtractor", "processor_class": "FireRedASR2Processor"}
    levels = {"means": [10.0] * 80, "inverse_std_variences": [0.3] * 80}
    (folder / "preprocessor_config.json").write_text(json.dumps({**extractor, **levels}))
    return folder


def cohere_asr(folder: Path) -> Path:
    """Cohere ASR as released: sizes in the words of its own code, which vLLM reads, beside those of transformers."""
    languages = ["en", "zh", "de"]
    marks = [f"<|{name}|>" for name in ("startofcontext", "startoftranscript", "emo:undefined", *languages)]
    rest = [f"<|{name}|>" for name in ("pnc", "noitn", "notimestamp", "nodiarize")]
    tokenizer = make_tokenizer(["▁", *marks, *rest])
    width, inner, layers, heads, mels = 64, 32, 2, 2, 32
    encoder = {
        "hidden_size": inner, "num_hidden_layers": layers, "num_attention_heads": heads, "intermediate_size": 4 * inner,
        "num_mel_bins": mels, "subsampling_conv_channels": 16, "max_position_embeddings": 500,
    }  # fmt: skip
    ids = {name: value for name, value in ids_of(tokenizer).items() if name != "vocab_size"}
    config = transformers.CohereAsrConfig(
        encoder_config=encoder, hidden_size=width, num_hidden_layers=layers, num_attention_heads=heads,
        intermediate_size=2 * width, vocab_size=len(tokenizer), max_position_embeddings=256, **ids,
        decoder_start_token_id=tokenizer.convert_tokens_to_ids("▁"),
    )  # fmt: skip
    model = draw_weights(transformers.CohereAsrForConditionalGeneration(config), embedding_std=0.3)
    model.save_pretrained(folder)
    file = folder / "model.safetensors"
    # Its own code has no outer model.
    save_file({name.removeprefix("model."): each for name, each in load_file(file).items()}, file)
    decoder = {
        "hidden_size": width, "inner_size": 2 * width, "hidden_act": "relu", "num_attention_heads": heads,
        "num_layers": layers, "max_sequence_length": 256,
    }  # fmt: skip
    own = {
        "sample_rate": 16_000, "max_audio_clip_s": 35, "overlap_chunk_second": 5,
        "head": {"num_classes": len(tokenizer), "hidden_size": width},
        "transf_decoder": {"config_dict": decoder},
        "preprocessor": {
            "sample_rate": 16_000, "window_size": 0.025, "window_stride": 0.01, "features": mels, "n_fft": 512,
            "dither": 0.0, "pad_to": 0,
        },
        "encoder": {
            "feat_in": mels, "n_layers": layers, "d_model": inner, "feat_out": -1, "causal_downsampling": False,
            "subsampling": "dw_striding", "subsampling_factor": 8, "subsampling_conv_channels": 16,
            "ff_expansion_factor": 4, "self_attention_model": "rel_pos", "n_heads": heads,
            "att_context_size": [-1, -1], "xscaling": False, "untie_biases": True, "pos_emb_max_len": 500,
            "conv_kernel_size": 9, "conv_norm_type": "batch_norm", "conv_context_size": None,
        },
    }  # fmt: skip
    written = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**written, **own, "dtype": "float32"}))
    tokenizer.save_pretrained(folder)
    extractor = {"feature_extractor_type": "CohereAsrFeatureExtractor", "processor_class": "CohereAsrProcessor"}
    (folder / "preprocessor_config.json").write_text(json.dumps({**extractor, "feature_size": mels, "dither": 0.0}))
    return folder


def fun_asr(folder: Path) -> Path:
    """Fun-ASR nano as vLLM reads it, whose encoder and adaptor have fixed widths there."""
    tokenizer = make_tokenizer(["<|AUDIO|>", "<|im_start|>", "<|im_end|>"])
    tokenizer.save_pretrained(folder)
    sizes = {**DECODER, **ids_of(tokenizer), "hidden_size": 1024, "tie_word_embeddings": False}
    model = draw_weights(transformers.Qwen3ForCausalLM(transformers.Qwen3Config(**sizes)), embedding_std=0.3)

    def attend(size: int, width: int) -> nn.Module:
        memory = nn.Conv1d(width, width, 11, groups=width, bias=False)
        parts = {"linear_q_k_v": nn.Linear(size, 3 * width), "linear_out": nn.Linear(width, width)}
        return nn.ModuleDict({**parts, "fsmn_block": memory})

    def block(attention: nn.Module, size: int, width: int, inner: int) -> nn.Module:
        feed = nn.ModuleDict({"w_1": nn.Linear(width, inner), "w_2": nn.Linear(inner, width)})
        norms = {"norm1": nn.LayerNorm(size), "norm2": nn.LayerNorm(width)}
        return nn.ModuleDict({"self_attn": attention, "feed_forward": feed, **norms})

    def heads() -> nn.Module:
        return nn.ModuleDict({f"linear_{name}": nn.Linear(1024, 1024) for name in ("q", "k", "v", "out")})

    encoder = nn.ModuleDict({
        "encoders0": nn.ModuleList([block(attend(560, 512), 560, 512, 64)]),
        "encoders": nn.ModuleList([block(attend(512, 512), 512, 512, 64)]),
        "tp_encoders": nn.ModuleList([block(attend(512, 512), 512, 512, 64)]),
        "after_norm": nn.LayerNorm(512), "tp_norm": nn.LayerNorm(512),
    })  # fmt: skip
    adaptor = nn.ModuleDict({
        "linear1": nn.Linear(512, 2048), "linear2": nn.Linear(2048, 1024),
        "blocks": nn.ModuleList([block(heads(), 1024, 1024, 256) for _ in range(2)]),
    })  # fmt: skip
    parts = {"llm": model, "audio_encoder": draw_weights(encoder), "audio_adaptor": draw_weights(adaptor)}
    state = {f"{part}.{name}": each for part, of in parts.items() for name, each in of.state_dict().items()}
    save_file(state, folder / "model.safetensors", metadata={"format": "pt"})
    sanm = {"output_size": 512, "attention_heads": 4, "linear_units": 64, "num_blocks": 2, "tp_blocks": 1}
    own = {"architectures": ["FunASRForConditionalGeneration"], "audio_encoder_conf": sanm}
    (folder / "config.json").write_text(json.dumps({**model.config.to_dict(), **own, "dtype": "float32"}))
    frames = {"fs": 16_000, "window": "hamming", "n_mels": 80, "lfr_m": 7, "lfr_n": 6, "cmvn_file": None}
    kind = {"feature_extractor_type": "FunASRFeatureExtractor", "processor_class": "FunASRProcessor"}
    (folder / "preprocessor_config.json").write_text(json.dumps({**kind, "frontend_conf": frames}))
    return folder


_MOSS_CODE = """
import torch
from transformers import ProcessorMixin


class MossProcessor(ProcessorMixin):
    feature_extractor_class = "WhisperFeatureExtractor"
    tokenizer_class = "AutoTokenizer"
    audio_merge_size = 4
    audio_start_token, audio_end_token = "<|audio_start|>", "<|audio_end|>"

    def __init__(self, feature_extractor=None, tokenizer=None, **kwargs):
        super().__init__(feature_extractor, tokenizer)
        self.audio_token_id = tokenizer.convert_tokens_to_ids("<|audio_pad|>")

    def _audio_span_ids(self, number):
        return [self.audio_token_id] * number

    def __call__(self, text=None, audio=None, **kwargs):
        inputs = self.tokenizer(text, return_tensors="pt")
        if audio:
            size = self.feature_extractor.n_samples
            pieces = [(n, each[at : at + size]) for n, each in enumerate(audio) for at in range(0, len(each), size)]
            heard = self.feature_extractor([piece for _, piece in pieces], sampling_rate=16000, return_tensors="pt")
            inputs["input_features"] = heard["input_features"]
            inputs["audio_feature_lengths"] = torch.tensor([(len(piece) - 1) // 1280 + 1 for _, piece in pieces])
            inputs["audio_chunk_mapping"] = torch.tensor([number for number, _ in pieces])
        return inputs
"""


def moss(folder: Path) -> Path:
    """MOSS-Transcribe-Diarize, whose processor is code in its folder."""
    special = ["<|audio_start|>", "<|audio_pad|>", "<|audio_end|>", "<|im_start|>", "<|im_end|>"]
    tokenizer = make_tokenizer(special)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "processing_moss.py").write_text(_MOSS_CODE)
    sizes = {**DECODER, **ids_of(tokenizer), "tie_word_embeddings": False}
    text = transformers.Qwen3Config(**sizes)
    model = draw_weights(transformers.Qwen3ForCausalLM(text), embedding_std=0.3)
    width = DECODER["hidden_size"]
    audio = _whisper(width).config
    encoder = draw_weights(transformers.WhisperModel(audio)).encoder.state_dict()
    adaptor = _adaptor(4 * width, width)
    state = {f"model.language_model.{name}": each for name, each in model.state_dict().items()}
    state |= {f"model.whisper_encoder.{name}": each for name, each in encoder.items()}
    state |= {f"model.vq_adaptor.layers.{name}": each for name, each in adaptor.state_dict().items()}
    save_file(state, folder / "model.safetensors", metadata={"format": "pt"})
    config = {
        "architectures": ["MossTranscribeDiarizeForConditionalGeneration"], "model_type": "moss_transcribe_diarize",
        "text_config": text.to_dict(), "audio_config": audio.to_dict(), "audio_merge_size": 4,
        "audio_token_id": tokenizer.convert_tokens_to_ids("<|audio_pad|>"), "tie_word_embeddings": False,
        "dtype": "float32", "eos_token_id": tokenizer.eos_token_id,
        "auto_map": {"AutoProcessor": "processing_moss.MossProcessor"},
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))
    tokenizer.save_pretrained(folder)
    transformers.WhisperFeatureExtractor(feature_size=80).save_pretrained(folder)
    named = {"processor_class": "MossProcessor", "auto_map": {"AutoProcessor": "processing_moss.MossProcessor"}}
    (folder / "processor_config.json").write_text(json.dumps(named))
    return folder


def gemma3n(folder: Path) -> Path:
    """Gemma 3n, whose marks of images and sounds have ids after those of all words."""
    marks = ["<start_of_image>", "<end_of_image>", "<start_of_audio>", "<end_of_audio>"]
    template = template_of(audio="<audio_soft_token>", image="<image_soft_token>")
    tokenizer = make_tokenizer([*marks, "<start_of_turn>", "<end_of_turn>"], template=template)
    tokenizer.add_tokens([AddedToken(number * "\n", special=False) for number in range(1, 5)])
    size = len(tokenizer)
    tokenizer.add_tokens(["<image_soft_token>", *(f"<image_{number}>" for number in range(127))], special_tokens=True)
    tokenizer.add_tokens(["<audio_soft_token>"], special_tokens=True)
    names = ("boi_token", "eoi_token", "boa_token", "eoa_token", "image_token", "audio_token")
    marks += ["<image_soft_token>", "<audio_soft_token>"]
    tokenizer._set_model_specific_special_tokens(dict(zip(names, marks, strict=True)))
    number = tokenizer.convert_tokens_to_ids
    text = {
        "num_hidden_layers": 4, "num_kv_shared_layers": 2, "layer_types": ["sliding_attention", "full_attention"] * 2,
        "vocab_size_per_layer_input": size, "hidden_size_per_layer_input": 16, "laurel_rank": 8,
        "vocab_size": size + 256,
    }  # fmt: skip
    audio = {
        "hidden_size": 64, "conf_num_attention_heads": 2, "conf_num_hidden_layers": 2, "vocab_offset": size + 128,
        "sscp_conv_channel_size": [16, 8],
    }  # fmt: skip
    config = {
        "text_config": text, "audio_config": audio,
        "vision_config": {"architecture": "test_resnet", "vocab_offset": size, "hidden_size": 2048},
        "audio_token_id": number("<audio_soft_token>"), "image_token_id": number("<image_soft_token>"),
        "boi_token_id": number("<start_of_image>"), "eoi_token_id": number("<end_of_image>"),
        "boa_token_id": number("<start_of_audio>"), "eoa_token_id": number("<end_of_audio>"),
    }  # fmt: skip
    parts = {
        "feature_extractor": transformers.Gemma3nAudioFeatureExtractor(),
        "image_processor": transformers.SiglipImageProcessor(size={"height": 64, "width": 64}),
    }
    conditional(folder, "Gemma3n", tokenizer, config, parts, std=0.3)
    state = load_file(folder / "model.safetensors")
    # Nothing but words is written: the two libraries read marks of media in an answer in other ways. Not a row of
    # zeros: vLLM 0.32 scales it to its own size, which is 0 / 0.
    state["model.language_model.embed_tokens.weight"][size:] *= 0.1
    save_file(state, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def speakers(folder: Path) -> Path:
    """A MOSS that writes what two speakers say, whatever it hears: each token is followed by the next."""
    moss(folder)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    said = ["[0.50][S01]", "ships at sea", "[1.25]", "[1.50][S02]", "rain", "[2.00]"]
    tokenizer.add_tokens([AddedToken(part, special=False, normalized=False) for part in said])
    tokenizer.save_pretrained(folder)
    file, language_model = folder / "model.safetensors", "model.language_model."
    state = load_file(file)
    tables = [f"{language_model}{name}.weight" for name in ("model.embed_tokens", "lm_head")]
    for name in tables:
        more = torch.randn(
            len(tokenizer) - len(state[name]), DECODER["hidden_size"], generator=torch.Generator().manual_seed(1)
        )
        state[name] = torch.cat([state[name], more])
    for name in state.keys() - set(tables):
        if name.startswith(language_model) and ("o_proj" in name or "down_proj" in name):
            state[name].zero_()
    rows, heads = (state[name] for name in tables)
    chain = [tokenizer.encode("\n")[-1], *tokenizer.convert_tokens_to_ids(said), tokenizer.eos_token_id]
    heads[chain[1:]] = 10 * rows[chain[:-1]] / rows[chain[:-1]].norm(dim=-1, keepdim=True)
    save_file(state, file, metadata={"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    config["text_config"]["vocab_size"] = len(tokenizer)
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def qwen3_omni(_: Path) -> Path:
    """Qwen3-Omni, as the package builds it; its thinker transcribes."""
    return Path(resolve_model("builtin:tiny-qwen3-omni"))


def _plain_linear(input_size: int, output_size: int, bias: bool = True, **_: Any) -> nn.Linear:
    return nn.Linear(input_size, output_size, bias)


BUILDERS: dict[str, Callable[[Path], Path]] = {
    builder.__name__: builder
    for builder in (
        cohere_asr, fire_red_asr2, fun_asr, gemma3n, glm_asr, granite_speech, granite_speech_plus, kimi_audio, moss,
        qwen3_asr_realtime, qwen3_omni, voxtral_realtime,
    )
}  # fmt: skip
# Packages that are no part of an installation on a CPU.
NEEDS = {
    "cohere_asr": ("torchaudio", "librosa"),
    "fire_red_asr2": ("kaldi_native_fbank",),
    "fun_asr": ("torchaudio",),
    "gemma3n": ("timm",),
    "granite_speech": ("torchaudio",),
}
NEEDS["granite_speech_plus"] = NEEDS["granite_speech"]
