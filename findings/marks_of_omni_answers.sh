#!/usr/bin/env bash
# Expected: `apply_chat_template` of a processor, asked by `return_assistant_tokens_mask=True`, marks the tokens of the answers,
#   also behind an image or a recording.
# Happens: the marks of Qwen2.5-Omni are where the answer was before one placeholder became hundreds. With transformers 4.57.6
#   and 5.19.0, placeholders of the image or recording are marked, and no token of the answer. 5.24.0 is right there, and
#   wrong in the same way for Nemotron H Omni. Without media all are right, and Qwen2.5-VL is from 5.19.0
#   on (run). Nothing of it is raised or logged.
# Source: `apply_chat_template` of 5.19.0, `transformers/processing_utils.py`, line 2266, shifts the marks by
#   `text_replacement_offsets`, and by nothing where a processor does not return it. Those of Qwen2.5-Omni, and Qwen3-Omni
#   and Gemma 3n (read, not run), do not; `processing_nemotron_h_omni.py` of 5.24.0 drops it in line 137.
# Why users care: fine-tuning on answers alone takes its labels from these marks. It then trains the model to predict
#   placeholders and nothing of the answers. The loss is a number as always, and a run on text alone is right.
# Exit code: 0 as described, 1 if the output is another one.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet torch==2.13.0 torchvision==0.28.0 numpy==2.3.5 pillow==13.0.0 librosa==0.11.0
for release in 4.57.6 5.19.0 5.24.0; do
  "$folder/venv/bin/pip" install --quiet transformers==$release
  "$folder/venv/bin/python" - <<'PYTHON' 2>>"$folder/errors"
import numpy
import torch

try:
    import torchvision  # noqa: F401
except RuntimeError:  # a CUDA build beside a CPU build of torch, which lacks operators that are not used here
    library = torch.library.Library("torchvision", "FRAGMENT")
    for name in ("nms", "qnms"):
        library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
import transformers
from PIL import Image
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

places = {name: f"<|{name.upper()}|>" for name in ("image", "audio", "video")}
sides = {f"{name}_{side}": f"<|{name}_{side}|>" for name in ("vision", "audio") for side in ("bos", "eos")}
letters = sorted(pre_tokenizers.ByteLevel.alphabet())
bytelevel = Tokenizer(models.BPE(vocab={letter: index for index, letter in enumerate(letters)}, merges=[]))
bytelevel.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
bytelevel.decoder = decoders.ByteLevel()
bytelevel.add_special_tokens([*places.values(), *sides.values(), "<|im_start|>", "<|im_end|>"])
named = {f"{name}_token": token for name, token in (places | sides).items()}
fast = transformers.Qwen2TokenizerFast if transformers.__version__ == "4.57.6" else transformers.PreTrainedTokenizerFast
tokenizer = fast(tokenizer_object=bytelevel, pad_token="<|im_end|>", extra_special_tokens=named)
template = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{% if message.role == 'assistant' %}"
    "{% generation %}{{ message.content[0].text }}<|im_end|>{% endgeneration %}{% else %}{% for part in message.content %}"
    "{% if part.type == 'image' %}<|IMAGE|>{% elif part.type == 'audio' %}<|AUDIO|>{% else %}{{ part.text }}{% endif %}"
    "{% endfor %}<|im_end|>{% endif %}\n{% endfor %}"
)
processors = [
    transformers.Qwen2_5OmniProcessor(
        transformers.Qwen2VLImageProcessor(), transformers.Qwen2VLVideoProcessor(),
        transformers.WhisperFeatureExtractor(feature_size=128), tokenizer, chat_template=template,
    )
]
if transformers.__version__ == "5.24.0":
    from transformers.models import nemotron_h_omni

    processors.append(
        nemotron_h_omni.NemotronH_Omni_Reasoning_V3Processor(
            nemotron_h_omni.NemotronH_Omni_Reasoning_V3ImageProcessor(),
            nemotron_h_omni.NemotronH_Omni_Reasoning_V3VideoProcessor(), tokenizer,
            transformers.ParakeetFeatureExtractor(), chat_template=template,
        )
    )
answer = {"role": "assistant", "content": [{"type": "text", "text": "It is a grey square, and nothing is heard."}]}
for processor in processors:
    for media in (
        {"type": "text", "text": "An empty message."},
        {"type": "image", "image": Image.new("RGB", (448, 448), "grey")},
        {"type": "audio", "audio": numpy.zeros(160000, numpy.float32)},
    ):
        question = {"role": "user", "content": [media, {"type": "text", "text": "What is this?"}]}
        keys = {"tokenize": True, "return_dict": True, "return_assistant_tokens_mask": True, "return_tensors": "np"}
        output = processor.apply_chat_template([question, answer], **keys)
        ids, marks = numpy.asarray(output["input_ids"][0]), numpy.asarray(output["assistant_masks"][0]) == 1
        marked = tokenizer.decode(ids[marks])
        for token in places.values():
            marked = f"{marked.count(token)} x {token}" if token in marked else marked
        name = type(processor).__name__.removesuffix("Processor").removesuffix("_Reasoning_V3")
        print(f"transformers {transformers.__version__}, {name}, {media['type']}: marked of {len(ids)} tokens: {marked}")
PYTHON
done | tee "$folder/seen"
diff "$folder/seen" - <<'EXPECTED' || exit 1
transformers 4.57.6, Qwen2_5Omni, text: marked of 91 tokens: It is a grey square, and nothing is heard.<|im_end|>
transformers 4.57.6, Qwen2_5Omni, image: marked of 330 tokens: 6 x <|IMAGE|>
transformers 4.57.6, Qwen2_5Omni, audio: marked of 324 tokens: 6 x <|AUDIO|>
transformers 5.19.0, Qwen2_5Omni, text: marked of 91 tokens: It is a grey square, and nothing is heard.<|im_end|>
transformers 5.19.0, Qwen2_5Omni, image: marked of 330 tokens: 6 x <|IMAGE|>
transformers 5.19.0, Qwen2_5Omni, audio: marked of 324 tokens: 6 x <|AUDIO|>
transformers 5.24.0, Qwen2_5Omni, text: marked of 91 tokens: It is a grey square, and nothing is heard.<|im_end|>
transformers 5.24.0, Qwen2_5Omni, image: marked of 330 tokens: It is a grey square, and nothing is heard.<|im_end|>
transformers 5.24.0, Qwen2_5Omni, audio: marked of 324 tokens: It is a grey square, and nothing is heard.<|im_end|>
transformers 5.24.0, NemotronH_Omni, text: marked of 91 tokens: It is a grey square, and nothing is heard.<|im_end|>
transformers 5.24.0, NemotronH_Omni, image: marked of 341 tokens: 7 x <|IMAGE|>
transformers 5.24.0, NemotronH_Omni, audio: marked of 218 tokens: 7 x <|AUDIO|>
EXPECTED
