"""GLM-Image's processor: a tokenizer whose first ids are image tokens, and the chat template."""

from __future__ import annotations

from tokenizers import AddedToken, Tokenizer, decoders
from tokenizers.models import BPE
from transformers import GlmImageProcessor, PreTrainedTokenizerFast
from transformers.models.glm_image.image_processing_glm_image import GlmImageImageProcessor

from omni_cli.checkpoints.tokenizer import byte_level_tokenizer, train_bpe
from omni_cli.models.glm_image.checkpoint.sizes import GlmImageSizes

IMAGE_TOKEN = "<|image|>"
_GRID_TOKENS = {"grid_bos_token": "<sop>", "grid_eos_token": "<eop>"}
_SPECIAL_TOKENS = ("<|endoftext|>", "[gMASK]", *_GRID_TOKENS.values(), "<|user|>", "<|assistant|>", IMAGE_TOKEN)
_CHAT_TEMPLATE = (
    "{%- for message in messages -%}"
    "{%- if message.content is string -%}{{- message.content -}}{%- else -%}"
    "{%- for part in message.content -%}"
    "{%- if part.type == 'image' -%}{{- bos_token + '<|image|>' + eos_token -}}"
    "{%- else -%}{{- part.text -}}{%- endif -%}"
    "{%- endfor -%}{%- endif -%}{%- endfor -%}"
)


def make_processor(sizes: GlmImageSizes) -> GlmImageProcessor:
    """The processor with a tokenizer that is trained in place."""
    images = GlmImageImageProcessor(
        patch_size=sizes.patch_size,
        merge_size=1,
        temporal_patch_size=1,
        size={"shortest_edge": sizes.min_pixels, "longest_edge": sizes.max_pixels},
    )
    return GlmImageProcessor(image_processor=images, tokenizer=_tokenizer(sizes), chat_template=_CHAT_TEMPLATE)


def _tokenizer(sizes: GlmImageSizes) -> PreTrainedTokenizerFast:
    text, merges = train_bpe(sizes.num_text_tokens)
    names = [f"<|dit_token_{index}|>" for index in range(sizes.vision_vocab_size)] + [*text, *_SPECIAL_TOKENS]
    backend: Tokenizer = byte_level_tokenizer()
    backend.model = BPE(vocab={name: index for index, name in enumerate(names)}, merges=merges)
    backend.decoder = decoders.ByteLevel()
    bos, eos = names[sizes.image_start_token_id], names[sizes.image_end_token_id]
    backend.add_special_tokens([AddedToken(token, special=True) for token in (bos, eos, *_SPECIAL_TOKENS)])
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        bos_token=bos,
        eos_token=eos,
        pad_token="<|endoftext|>",
        extra_special_tokens={"image_token": IMAGE_TOKEN, **_GRID_TOKENS},
        model_max_length=8192,
        clean_up_tokenization_spaces=False,
    )
