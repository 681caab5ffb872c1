#!/usr/bin/env bash
# Expected: a checkpoint of Mistral with images, published in Mistral's format and in that of transformers, gets the same
#   pixels and as many image tokens from the package of either.
# Happens: mistral_common 1.13.1 shrinks images by OpenCV's cubic, which reads 4 x 4 pixels at any ratio and skips the rest;
#   transformers 5.19.0 and 5.24.0 average over all. Of the black lines of a scanned page, one pixel wide, mistral_common
#   removes a quarter and keeps others as black as they were; transformers has each of them, in grey. Also, the former
#   rounds the size where the latter cuts off the fraction: an image of 2000 x 1310 has 37 rows of tokens or 36. Nothing is
#   raised or logged.
# Source: `mistral_common/tokens/tokenizers/image.py`, `transform_image` and `_image_to_num_tokens`; `transformers/models/pixtral`,
#   `get_resize_output_image_size`. vLLM 0.32.0 takes Mistral's format, and with it mistral_common, where a folder has
#   params.json, consolidated.safetensors and tekken.json, also beside the files of transformers (read, not run).
# Why users care: tables, drawings and small print in images of more than 1,540 pixels reach the same weights with lines
#   missing or with all of them, depending on the files beside the weights, and an evaluation with transformers does not
#   hold for what vLLM serves.
# Exit code: 0 as described, 1 if the output is another one.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet numpy==2.3.5 pillow==13.0.0 opencv-python-headless==5.0.0.93 mistral_common==1.13.1
for release in 5.19.0 5.24.0; do
  "$folder/venv/bin/pip" install --quiet transformers==$release
  "$folder/venv/bin/python" - <<'PYTHON' 2>>"$folder/errors"
import mistral_common
import numpy
import transformers
from mistral_common.protocol.instruct.chunk import ImageChunk
from mistral_common.tokens.tokenizers.image import ImageConfig, ImageEncoder, SpecialImageIDs
from PIL import Image
from transformers.models.pixtral.image_processing_pil_pixtral import PixtralImageProcessorPil

# The sizes of Mistral Small 3.1: 1,540 pixels at most, 28 for each token.
encoder = ImageEncoder(ImageConfig(image_patch_size=14, max_image_size=1540, spatial_merge_size=2), SpecialImageIDs(10, 12, 13))
processor = PixtralImageProcessorPil(size={"longest_edge": 1540}, patch_size={"height": 28, "width": 28})
mean, deviation = processor.image_mean[0], processor.image_std[0]
page = numpy.full((3508, 2480, 3), 255, numpy.uint8)  # A4 at 300 dots per inch
columns = numpy.arange(10, 2480, 20)
page[:, columns] = 0
for name, prepare in (
    (f"mistral_common {mistral_common.__version__}", lambda image: encoder(ImageChunk(image=image)).image),
    (f"transformers {transformers.__version__}", lambda image: processor(image, return_tensors="np")["pixel_values"][0]),
):
    red = prepare(Image.fromarray(page))[0, 700] * deviation + mean
    at = ((columns + 0.5) * len(red) / 2480).astype(int)
    darkest = numpy.stack([1 - red[at + shift] for shift in (-1, 0, 1)]).max(0)
    shares = f"{(darkest < 0.1).sum()} below 0.1 of black, {(darkest > 0.9).sum()} above 0.9"
    rows = prepare(Image.new("RGB", (2000, 1310))).shape[1] // 28
    print(f"{name}: of {len(columns)} lines on {len(red)} pixels, {shares}; {rows} rows of tokens of the other image")
PYTHON
done | tee "$folder/seen"
diff "$folder/seen" - <<'EXPECTED' || exit 1
mistral_common 1.13.1: of 124 lines on 1092 pixels, 28 below 0.1 of black, 24 above 0.9; 37 rows of tokens of the other image
transformers 5.19.0: of 124 lines on 1092 pixels, 0 below 0.1 of black, 0 above 0.9; 36 rows of tokens of the other image
mistral_common 1.13.1: of 124 lines on 1092 pixels, 28 below 0.1 of black, 24 above 0.9; 37 rows of tokens of the other image
transformers 5.24.0: of 124 lines on 1092 pixels, 0 below 0.1 of black, 0 above 0.9; 36 rows of tokens of the other image
EXPECTED
