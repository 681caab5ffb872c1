"""Convert a request to vLLM's prompt: chat template, placeholders of its media, and the media themselves.

vLLM does all three: its renderer finds the checkpoint's template and placeholders, and its processor knows which media
the model accepts.
"""

from __future__ import annotations

import base64
import dataclasses
import functools
import math
import struct
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from PIL import Image
from vllm.exceptions import VLLMClientError
from vllm.logprobs import Logprob
from vllm.multimodal import video as loaders
from vllm.multimodal.hasher import MultiModalHasher
from vllm.multimodal.media import MediaConnector
from vllm.multimodal.video_decoders import VideoSourceMetadata
from vllm.renderers import ChatParams, hf
from vllm.renderers.hf import HfRenderer, resolve_chat_template
from vllm.transformers_utils.processor import get_video_processor_cls_name_from_config
from vllm.v1.engine.llm_engine import LLMEngine

from omni_cli.checkpoints.resolve import resolve_model
from omni_cli.config.schema import ARStageConfig
from omni_cli.core.errors import InputError
from omni_cli.requests.contents import ToolCall, Video
from omni_cli.requests.encoding import resample
from omni_cli.requests.outputs import GenerateRequest, Message, Part, PromptTokens, TokenLogprobs, prompt_message
from omni_cli.stage.failures import translate

# vLLM's message parts for media that are sent separately: an id in place of the content.
_PARTS: Mapping[str, Mapping[str, object]] = {
    "image": {"type": "image_pil", "image_pil": None, "uuid": "image"},
    "audio": {"type": "audio_url", "audio_url": None, "uuid": "audio"},
    "video": {"type": "video_url", "video_url": None, "uuid": "video"},
}
_Logprobs = Sequence[Mapping[int, Logprob] | None]
_NOUNS = {"image": "images", "audio": "audio", "video": "video"}


class PromptMaker:
    """Builds the prompts of one engine; raises `InputError` for a request that its model does not accept."""

    def __init__(self, engine: LLMEngine, stage: ARStageConfig) -> None:
        self._renderer = engine.renderer
        self._model_config = engine.vllm_config.model_config
        self._stage = stage
        if not self._model_config.is_multimodal_model:
            # vLLM would look for a processor's template, and load the tokenizer again for it.
            hf._try_get_processor_chat_template = lambda *_args, **_settings: None
        limits = self._processor.info.allowed_mm_limits if self._model_config.is_multimodal_model else {}
        self.takes = frozenset(name for name, limit in limits.items() if limit)

    def prompt(self, request: GenerateRequest) -> dict[str, Any]:
        """Return vLLM's prompt: the text as the tokenizer receives it, and the media."""
        media: dict[str, tuple[Any, ...]] = {
            "image": request.media.images,
            "audio": request.media.audio,
            "video": request.media.videos,
        }
        for name, items in media.items():
            if items and name not in self.takes:
                *others, last = ["text", *(noun for medium, noun in _NOUNS.items() if medium in self.takes)]
                what = f"{', '.join(others)} and {last}" if others else last
                raise InputError(f"stage `{self._stage.name}` takes no {name}: this model takes {what}")
        ids = request.text.prompt_token_ids
        raw: dict[str, Any] = {"prompt": request.prompt} if ids is None else {"prompt_token_ids": list(ids)}
        prompt = raw if request.text.raw else self._chat(request)
        if any(media.values()):
            data = {name: [self._item(item) for item in items] for name, items in media.items() if items}
            prompt["multi_modal_data"] = data
            if request.cache_salt is not None:
                # vLLM salts the blocks of its KV cache alone; outputs of encoders are kept by these ids.
                salt, digest = request.cache_salt, functools.partial(MultiModalHasher.hash_kwargs, "sha256")
                prompt["multi_modal_uuids"] = {
                    name: [f"{salt} {digest(item=item)}" for item in items] for name, items in data.items()
                }
        if request.media.videos and not self._processor.info.data_parser.video_needs_metadata:
            # Without metadata, the processor would assume a default frame rate.
            metadata = [_metadata(video) for video in request.media.videos]
            prompt["mm_processor_kwargs"] = {"video_metadata": metadata, "do_sample_frames": False}
        return prompt

    @property
    def _processor(self) -> Any:
        return self._renderer.get_mm_processor()

    def tokenize_params(self, request: GenerateRequest) -> Any:
        """Return vLLM's tokenization parameters, without special tokens if the chat template adds them."""
        params = self._renderer.default_cmpl_tok_params
        if not request.text.raw and self._has_template:
            params = self._renderer.default_chat_tok_params.with_kwargs(add_special_tokens=False)
        if request.text.add_special_tokens is not None:
            params = params.with_kwargs(add_special_tokens=request.text.add_special_tokens)
        # A prompt that is only counted may be longer than the context.
        return dataclasses.replace(params, max_total_tokens=None) if request.text.prompt_only else params

    def tokens(self, request: GenerateRequest, token_ids: Sequence[int], logprobs: _Logprobs = ()) -> PromptTokens:
        """Describe a request's prompt, with vLLM's `prompt_logprobs` if there are any."""
        tokenizer = self._renderer.get_tokenizer()
        text = request.prompt if request.text.raw else None
        return PromptTokens(
            text=str(tokenizer.decode(list(token_ids))) if text is None else text,
            token_ids=tuple(token_ids),
            # The tokenizer has no name for ids beyond its vocabulary.
            token_strs=tuple(name or "" for name in tokenizer.convert_ids_to_tokens(list(token_ids)))
            if request.text.prompt_only
            else (),
            logprobs=tuple(
                ((token_id, math.nan, tokenizer.decode([token_id])),) if found is None else as_logprobs(found)
                for token_id, found in zip(token_ids, logprobs, strict=bool(logprobs))
            ),
        )

    @property
    def _has_template(self) -> bool:
        return not isinstance(self._renderer, HfRenderer) or self.get_template() is not None

    @functools.lru_cache  # noqa: B019 - it lives as long as the engine
    def get_template(self, *, with_tools: bool = False) -> str | None:
        """Return the model's chat template, or its own one for tools; None if it has none.

        A tokenizer with a format of its own, such as Mistral's, has none.
        """
        if not isinstance(self._renderer, HfRenderer):
            return None
        tools: list[dict[str, Any]] | None = [{}] if with_tools else None
        template: str | None = resolve_chat_template(
            self._renderer.get_tokenizer(), None, tools, model_config=self._model_config
        )
        return template

    def _chat(self, request: GenerateRequest) -> dict[str, Any]:
        """Apply the chat template; returns text, or token ids from a tokenizer with its own format."""
        messages = self._messages(request)
        if not self._has_template:
            return {"prompt": _only_text(messages)}
        tokenizes = not isinstance(self._renderer, HfRenderer)
        names = ("add_generation_prompt", "continue_final_message")
        own: dict[str, Any] = {"tokenize": tokenizes, **{name: getattr(request.text, name) for name in names}}
        if request.text.tool_use is not None:
            own["tools"] = list(request.text.tool_use.tools)
        params = ChatParams(chat_template_kwargs={**self.template_variables(request), **own})
        try:
            _, prompt = self._renderer.render_messages(_as_openai(messages), params)
        except (ValueError, VLLMClientError) as error:
            if getattr(error, "parameter", None) is not None:  # from vLLM's own checks, such as the number of images
                message, hint = translate(one_line(error), self._stage)
                raise InputError(message, hint=hint) from error
            raise InputError(f"the model's chat template refuses this conversation: {one_line(error)}") from error
        return {name: prompt[name] for name in ("prompt", "prompt_token_ids") if name in prompt}

    def template_variables(self, request: GenerateRequest) -> dict[str, Any]:
        """Return the request's variables of the chat template.

        Raises `InputError` for a reasoning effort where the template has none.
        """
        effort, template = request.text.reasoning_effort, self.get_template() or ""
        own: dict[str, Any] = {}
        if effort is not None and "reasoning_effort" in template:
            own["reasoning_effort"] = effort
        elif effort is not None and "enable_thinking" in template:
            own["enable_thinking"] = effort != "none"
        elif effort not in (None, "none"):
            raise InputError("this model's chat template takes no `reasoning_effort`")
        return {**own, **request.text.chat_template_kwargs}

    def conversation(self, request: GenerateRequest) -> list[Any]:
        """Return the messages in OpenAI's form, without their media. Raises `InputError` if they are empty."""
        return _as_openai(self._messages(request))

    def _messages(self, request: GenerateRequest) -> tuple[Message, ...]:
        messages = request.messages or (prompt_message(request),)  # a prompt comes after its media
        if not any(part.text or part.type != "text" for message in messages for part in message.parts):
            raise InputError("the prompt is empty", hint="give it something to answer")
        system_prompt = self._stage.system_prompt
        if system_prompt is not None and messages[0].role != "system":
            messages = (Message("system", (Part("text", system_prompt),)), *messages)
        return messages

    def _item(self, item: np.ndarray | tuple[np.ndarray, int] | Video) -> object:
        match item:
            case Video():
                return item.frames, {**_metadata(item), "do_sample_frames": item.do_sample_frames}
            case (samples, sample_rate):
                # vLLM would resample with a package that may not be installed.
                target = self._processor.info.data_parser.audio_resampler.target_sr
                return samples if target is None else (resample(samples, sample_rate, target), target)
        return Image.fromarray(item)


def _as_openai(messages: Iterable[Message]) -> list[Any]:
    return [
        {
            "role": message.role,
            "content": _content(message),
            **({} if message.reasoning is None else {"reasoning": message.reasoning}),
            **({} if message.tool_call_id is None else {"tool_call_id": message.tool_call_id}),
            **({"tool_calls": [_call(call) for call in message.tool_calls]} if message.tool_calls else {}),
        }
        for message in messages
    ]


def _call(call: ToolCall) -> dict[str, object]:
    function = {"name": call.name, "arguments": call.arguments}
    return {"id": call.id, "type": "function", "function": function}


def _content(message: Message) -> object:
    """Convert a message's parts to vLLM's content, which joins several texts as the chat template takes them."""
    if not message.parts or (len(message.parts) == 1 and message.parts[0].type == "text"):
        return "".join(part.text for part in message.parts)
    return [{"type": "text", "text": part.text} if part.type == "text" else _PARTS[part.type] for part in message.parts]


def _only_text(messages: tuple[Message, ...]) -> str:
    """Return the prompt for a model without a chat template."""
    (message, *more) = messages
    if more or any(part.type != "text" for part in message.parts):
        raise InputError(
            "this model has no chat template: it takes one message of text",
            hint="write the model's own marks for media into the prompt, and add `--raw`",
        )
    return "".join(part.text for part in message.parts)


def _metadata(video: Video) -> dict[str, object]:
    return {
        "total_num_frames": video.total_num_frames,
        "fps": video.fps,
        "duration": video.total_num_frames / video.fps,
        "video_backend": "pyav",
        "frames_indices": list(video.frames_indices),
    }


def apply_chat_template(processor: Any, conversation: list[dict[str, Any]]) -> str:
    """Apply transformers' chat template, for a model that vLLM has no processor for.

    Raises `InputError` if the template rejects the conversation.
    """
    from jinja2 import TemplateError

    try:
        return str(processor.apply_chat_template(conversation, tokenize=False, add_generation_prompt=True))
    except TemplateError as error:
        raise InputError(f"the model's chat template refuses this conversation: {one_line(error)}") from error


def as_logprobs(found: Mapping[int, Logprob]) -> TokenLogprobs:
    """Convert vLLM's log-probabilities of one position, the token's own first."""
    return tuple((token_id, each.logprob, each.decoded_token) for token_id, each in found.items())


def one_line(error: BaseException) -> str:
    """Return an exception's text, without the parameter name and value that vLLM's exceptions append."""
    text = error.args[0] if isinstance(error, VLLMClientError) and error.args else error
    return " ".join(str(text).split())


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
