#!/usr/bin/env bash
# Expected: the processor of Qwen2.5-Omni, which orders the frames of a video and its sound by time and gives the model the
#   seconds between frames, knows when the frames are that it has sampled, as that of Qwen2.5-VL does.
# Happens: transformers 5.19.0 and 5.24.0 count 2 frames per second unless `fps` is passed, whatever was sampled. Of a minute
#   of video, `fps=1` and `num_frames=60` take the same frames: with the former, the one at 30 s is behind 30 s of sound, with
#   the latter behind 14 s, and half of the sound is behind the last frame. All frames of a video with 30 per second are behind
#   its sound from the 4th second on. Nothing of it is raised or logged.
# Source: `transformers/models/qwen2_5_omni/processing_qwen2_5_omni.py`, line 168 of 5.19.0 and 223 of 5.24.0; Qwen3-Omni has its
#   own constant (run). Qwen2.5-VL takes `video_metadata`. vLLM 0.32.0, which takes 768 frames of any video of more than
#   384 s, calls this processor without `fps` and counts 2 per second, too (read, not run).
# Why users care: an answer to "what is said when the door opens" is about sound of another time as soon as the frames are
#   limited by number, and one of a loop that passes `fps` is not. Scores on videos with sound depend on it.
# Exit code: 0 as described, 1 if the output is another one.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet torch==2.13.0 torchvision==0.28.0 numpy==2.3.5 pillow==13.0.0
for release in 5.19.0 5.24.0; do
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
from tokenizers import Tokenizer, models
from transformers.video_utils import VideoMetadata

SECONDS, RATE = 60, 30
places = {name: f"<|{name.upper()}|>" for name in ("image", "audio", "video")}
sides = {f"{name}_{side}": f"<|{name}_{side}|>" for name in ("vision", "audio") for side in ("bos", "eos")}
empty = Tokenizer(models.BPE(vocab={}, merges=[]))
empty.add_special_tokens([*places.values(), *sides.values(), "<|pad|>"])
named = {f"{name}_token": token for name, token in (places | sides).items()}
tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=empty, pad_token="<|pad|>", extra_special_tokens=named)
image_processor = transformers.Qwen2VLImageProcessor()
video_processor = transformers.Qwen2VLVideoProcessor()
hearing = transformers.WhisperFeatureExtractor(feature_size=128, chunk_length=300)  # as that of the release
omni = transformers.Qwen2_5OmniProcessor(image_processor, video_processor, hearing, tokenizer)
vision = transformers.Qwen2_5_VLProcessor(image_processor, tokenizer, video_processor)
video = numpy.random.default_rng(0).integers(0, 256, (SECONDS * RATE, 56, 56, 3), numpy.uint8)
sound = numpy.zeros(SECONDS * 16000, numpy.float32)
both = {"audio": [sound], "load_audio_from_video": True, "audio_from_video_indices": [0]}
if transformers.__version__ == "5.19.0":
    both = {"audio": [sound], "use_audio_in_video": True}
text = sides["vision_bos"] + places["video"] + sides["vision_eos"]
pixels = {}
for name, keys in (
    ("1 frame per second", {"fps": 1, "do_sample_frames": True}),
    ("60 frames", {"num_frames": 60, "do_sample_frames": True}),
    ("all frames", {"do_sample_frames": False}),
):
    keys |= {"text": [text], "videos": [video], "return_tensors": "np"}
    keys["size"] = {"shortest_edge": 3136, "longest_edge": 3136 * 1800}
    output = omni(**keys, **both, video_metadata=[VideoMetadata(total_num_frames=len(video), fps=RATE)])
    other = vision(**keys, video_metadata=[VideoMetadata(total_num_frames=len(video), fps=RATE)])
    pixels[name] = output["pixel_values_videos"]
    steps = int(output["video_grid_thw"][0][0])  # of two frames each
    counted = {"VL": other["second_per_grid_ts"], "Omni": output["video_second_per_grid"]}
    ids = output["input_ids"][0]
    before = (ids == tokenizer.audio_token_id).cumsum()[ids == tokenizer.video_token_id].reshape(steps, -1)[:, 0]
    before = before * SECONDS / (ids == tokenizer.audio_token_id).sum()
    print(
        f"transformers {transformers.__version__}, {name}: {SECONDS / steps:.2f} s for two, by Qwen2.5",
        *(f"{model} {float(seconds[0]):.2f}," for model, seconds in counted.items()),
        f"the one at 30 s is behind {before[steps // 2]:.0f} s of sound, the last behind {before[-1]:.0f} s",
    )
print("60 frames are those of 1 frame per second:", numpy.array_equal(pixels["60 frames"], pixels["1 frame per second"]))
PYTHON
done | tee "$folder/seen"
diff "$folder/seen" - <<'EXPECTED' || exit 1
transformers 5.19.0, 1 frame per second: 2.00 s for two, by Qwen2.5 VL 2.00, Omni 2.00, the one at 30 s is behind 30 s of sound, the last behind 58 s
transformers 5.19.0, 60 frames: 2.00 s for two, by Qwen2.5 VL 2.00, Omni 1.00, the one at 30 s is behind 14 s of sound, the last behind 28 s
transformers 5.19.0, all frames: 0.07 s for two, by Qwen2.5 VL 0.07, Omni 1.00, the one at 30 s is behind 60 s of sound, the last behind 60 s
60 frames are those of 1 frame per second: True
transformers 5.24.0, 1 frame per second: 2.00 s for two, by Qwen2.5 VL 2.00, Omni 2.00, the one at 30 s is behind 30 s of sound, the last behind 58 s
transformers 5.24.0, 60 frames: 2.00 s for two, by Qwen2.5 VL 2.00, Omni 1.00, the one at 30 s is behind 14 s of sound, the last behind 28 s
transformers 5.24.0, all frames: 0.07 s for two, by Qwen2.5 VL 0.07, Omni 1.00, the one at 30 s is behind 60 s of sound, the last behind 60 s
60 frames are those of 1 frame per second: True
EXPECTED
