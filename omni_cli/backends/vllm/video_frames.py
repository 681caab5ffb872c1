"""Choose the frames of a video that a model sees, with vLLM's loader for its processor.

The loaders also decode: they get the number and the rate of the frames in place of a file.
"""

from __future__ import annotations

import base64
import struct
from collections.abc import Mapping
from typing import Any

import numpy as np
from vllm.multimodal import video as loaders
from vllm.multimodal.media import MediaConnector
from vllm.multimodal.video_decoders import VideoSourceMetadata
from vllm.transformers_utils.processor import get_video_processor_cls_name_from_config

from omni_cli.checkpoints.resolve import resolve_model
from omni_cli.core.errors import InputError

_SOURCE = struct.Struct("<qd")


def choose_frames(model: str, total: int, fps: float, options: Mapping[str, float]) -> tuple[list[int], dict[str, Any]]:
    """Return the indices of the frames that vLLM gives a checkpoint with its `options`, and its metadata on them."""
    processor = get_video_processor_cls_name_from_config(resolve_model(model, settings_only=True), None)
    loader = loaders.VIDEO_LOADER_REGISTRY.load(loaders.get_video_loader_backend_for_processor(processor) or "opencv")
    code = loader.compute_frames_index_to_sample.__code__
    for name in options:
        if name not in (*code.co_names, *code.co_consts):  # attributes and keys that it reads
            raise InputError(f"`media_io_kwargs.video.{name}` has no effect on this model's frames ({processor})")
    loaders.decode_video = _numbers
    url = f"data:video/mp4;base64,{base64.b64encode(_SOURCE.pack(total, fps)).decode()}"
    whole = {name: int(value) if value % 1 == 0 else value for name, value in options.items()}
    try:
        frames, metadata = MediaConnector({"video": whole}).fetch_video(url, video_processor=processor).media
    except (ArithmeticError, TypeError, ValueError) as error:
        raise InputError(f"vLLM cannot choose of {total} frames, {fps:g} per second: {error}") from None
    return frames.flatten().tolist(), metadata


def _numbers(
    _backend: str, loader: Any, data: bytes, target: Any, sampling: dict[str, Any], *_: Any, **_more: Any
) -> Any:
    """Stand in for vLLM's decoder, whose frames are in order and differ."""
    total, fps = _SOURCE.unpack(data)
    source = loader._prepare_source(VideoSourceMetadata(total, fps, total / fps))
    indices = loader.compute_frames_index_to_sample(source=source, target=target, **sampling)
    valid = sorted(set(indices))
    return np.array(valid).reshape(-1, 1, 1, 1), source, indices, valid
