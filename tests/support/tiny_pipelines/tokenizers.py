"""Tokenizers of every kind that pipelines have, with the same few words."""

from __future__ import annotations

import functools
import string
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from omni_cli.checkpoints.tokenizer import TokenSet, train_tokenizer

VOCAB_SIZE = 1024
_CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n"
    "{% if message.content is string %}{{ message.content }}{% else %}{% for part in message.content %}"
    "{% if part.type == 'image' %}<|vision_start|><|image_pad|><|vision_end|>"
    "{% elif part.type == 'text' %}{{ part.text }}{% endif %}{% endfor %}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
_VISION_TOKENS = TokenSet(
    special=(
        "<|endoftext|>",
        "<|im_start|>",
        "<|im_end|>",
        "<|vision_start|>",
        "<|vision_end|>",
        "<|vision_pad|>",
        "<|image_pad|>",
        "<|video_pad|>",
        "[INST]",
        "[/INST]",
        "[IMG]",
        "<image>",
        "<think>",
        "</think>",
    ),
)
_PIECES = ["▁", *string.ascii_letters, *string.digits, *string.punctuation]


@functools.cache
def qwen2() -> Any:
    """Byte-level BPE with the tokens and a chat template of the Qwen-VL models."""
    tokenizer = train_tokenizer(VOCAB_SIZE, model_max_length=4096, tokens=_VISION_TOKENS)
    tokenizer.chat_template = _CHAT_TEMPLATE
    return tokenizer


def _unigram(kind: str, *special: str, **options: Any) -> Any:
    import transformers

    vocab = [*((token, 0.0) for token in special), *((piece, -3.0) for piece in _PIECES)]
    return getattr(transformers, kind)(vocab=vocab, model_max_length=77, **options)


def t5() -> Any:
    return _unigram("T5Tokenizer", "<pad>", "</s>", "<unk>", extra_ids=0)


def byt5() -> Any:
    from transformers import ByT5Tokenizer

    return ByT5Tokenizer()


def xlm_roberta() -> Any:
    return _unigram("XLMRobertaTokenizer", "<s>", "<pad>", "</s>", "<unk>", "<mask>")


def _byte_fallback(*special: str) -> dict[str, int]:
    pieces = [*special, *(f"<0x{byte:02X}>" for byte in range(256)), *_PIECES]
    return {piece: index for index, piece in enumerate(pieces)}


def llama() -> Any:
    from transformers import LlamaTokenizer

    marks = ["<image>", "<|end_header_id|>"]
    vocab = _byte_fallback("<unk>", "<s>", "</s>", "<image>", "<pad>", "<|end_header_id|>")
    tokenizer = LlamaTokenizer(
        vocab=vocab, merges=[], pad_token="<pad>", extra_special_tokens=marks, model_max_length=512
    )
    tokenizer.chat_template = _CHAT_TEMPLATE
    return tokenizer


def gemma() -> Any:
    from transformers import GemmaTokenizer

    vocab = _byte_fallback("<pad>", "<eos>", "<bos>", "<unk>", "<mask>", "<image_soft_token>")
    tokenizer = GemmaTokenizer(vocab=vocab, merges=[], model_max_length=512)
    tokenizer.chat_template = _CHAT_TEMPLATE
    return tokenizer


def bert() -> Any:
    from transformers import BertTokenizer

    letters = [*string.ascii_lowercase, *string.digits, *string.punctuation]
    tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *letters, *("##" + letter for letter in letters)]
    return BertTokenizer(vocab={token: index for index, token in enumerate(tokens)}, model_max_length=77)


def _byte_alphabet() -> list[str]:
    from tokenizers.pre_tokenizers import ByteLevel

    return sorted(ByteLevel.alphabet())


def clip() -> Any:
    """Every byte a token, alone or at the end of a word; no merges."""
    from transformers import CLIPTokenizer

    letters = _byte_alphabet()
    vocab = [*letters, *(letter + "</w>" for letter in letters), "<|startoftext|>", "<|endoftext|>"]
    return CLIPTokenizer(vocab={token: index for index, token in enumerate(vocab)}, merges=[], model_max_length=77)


def roberta() -> Any:
    from transformers import RobertaTokenizer

    tokens = ["<s>", "<pad>", "</s>", "<unk>", "<mask>", *_byte_alphabet()]
    return RobertaTokenizer(vocab={token: index for index, token in enumerate(tokens)}, merges=[], model_max_length=77)


def chatglm() -> Any:
    """A SentencePiece model of single characters: this tokenizer reads a file of its own kind."""
    import sentencepiece
    from diffusers.pipelines.kolors.tokenizer import ChatGLMTokenizer

    folder = Path(tempfile.mkdtemp())
    text = folder / "text"
    text.write_text("\n".join(string.printable[start : start + 20].strip() for start in range(0, 95, 20)) + "\n")
    sentencepiece.SentencePieceTrainer.train(
        input=str(text),
        model_prefix=str(folder / "tokenizer"),
        model_type="char",
        vocab_size=90,
        hard_vocab_limit=False,
        minloglevel=2,
    )
    return ChatGLMTokenizer(str(folder / "tokenizer.model"))


TOKENIZERS: Mapping[str, Callable[..., Any]] = {
    "AutoProcessor": qwen2,
    "AutoTokenizer": qwen2,
    "BertTokenizer": bert,
    "ByT5Tokenizer": byt5,
    "CLIPTokenizer": clip,
    "ChatGLMTokenizer": chatglm,
    "GemmaTokenizer": gemma,
    "LlamaTokenizer": llama,
    "PreTrainedTokenizerBase": qwen2,
    "PythonBackend": bert,
    "Qwen2Tokenizer": qwen2,
    "RobertaTokenizer": roberta,
    "T5Tokenizer": t5,
    "TokenizersBackend": qwen2,
    "XLMRobertaTokenizer": xlm_roberta,
}
