"""transformers leaves CSM's embeddings of codes random: it saves one of two tied tables, and ties none on loading.

In 5.19.0 `CsmConfig` sets `tie_word_embeddings` to false, so that `tie_codebooks_embeddings: true` has no effect when a
checkpoint is loaded. 5.23.0 ties them.

    PYTHONPATH=. python benchmarks/upstream/untied_codes.py
"""

from __future__ import annotations

import sys
import tempfile

from omni_cli.compat.torchvision import ensure_torchvision_importable

SIZES = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
CODEC = {"model_type": "mimi", "hidden_size": 32, "num_filters": 4, "num_hidden_layers": 1, "upsample_groups": 32}


def main() -> int:
    ensure_torchvision_importable()
    import transformers

    config = transformers.CsmConfig(
        **SIZES, vocab_size=64, text_vocab_size=64, depth_decoder_config={**SIZES, "vocab_size": 64}, codec_config=CODEC
    )
    model = transformers.CsmForConditionalGeneration(config)
    model.backbone_model.embed_tokens.embed_audio_tokens.weight = model.depth_decoder.model.embed_tokens.weight
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        loaded, info = transformers.CsmForConditionalGeneration.from_pretrained(folder, output_loading_info=True)
    tables = (loaded.backbone_model.embed_tokens.embed_audio_tokens, loaded.depth_decoder.model.embed_tokens)
    tied = tables[0].weight.equal(tables[1].weight)
    sys.stdout.write(
        f"transformers {transformers.__version__}: the tables are {'equal' if tied else 'not equal'} after loading; "
        f"reported as missing: {sorted(info['missing_keys'])}\n"
    )
    return 0 if tied else 1


if __name__ == "__main__":
    sys.exit(main())
