"""The two stages, and what goes from one to the other."""

import time
from typing import Any

from omni_cli.backends.vllm.stage import ActiveRequest, PoolingParams, VllmStage
from omni_cli.backends.vllm.text_stage import TextStage
from omni_cli.stage.messages import Report, RequestDone
from omni_cli.stage.payloads import encode_additional_information, get_integers
from omni_cli.stage.request_payloads import ADDITIONAL_INFORMATION
from omni_toy.family import PAINTER


class WriterStage(TextStage):
    """Text, and its token ids for the painter."""

    def stage_output(self, active: ActiveRequest, output: Any) -> bytes:
        return encode_additional_information({"token_ids": active.token_ids})


class PainterStage(VllmStage):
    """An image of the writer's tokens."""

    def engine_args(self) -> dict[str, Any]:
        return {**super().engine_args(), "hf_overrides": {"architectures": [PAINTER]}}

    def render(self, active: ActiveRequest) -> tuple[dict[str, Any], PoolingParams]:
        request, stage = active.request, self.spec.stage
        num_steps = int(request.diffusion.get("num_inference_steps", stage.num_inference_steps or 4))
        active.context["num_inference_steps"] = num_steps
        information = {"num_inference_steps": [num_steps], "seed": [request.seed]}
        extra = {ADDITIONAL_INFORMATION: encode_additional_information(information, self.payload_limits)}
        prompt = {"prompt_token_ids": get_integers(self.decode_input(request.stage.input), "token_ids")}
        return prompt, PoolingParams(task="plugin", extra_kwargs=extra)

    def output(self, active: ActiveRequest, output: Any) -> list[Report]:
        self.check_numbers(output.outputs.data, "pixels")
        pixels = (output.outputs.data * 255).round().byte().numpy()
        frame = self.spec.stage.frame_pixels
        if frame:
            pixels[:frame] = pixels[-frame:] = 0
            pixels[:, :frame] = pixels[:, -frame:] = 0
        trace = {
            "latency_s": time.perf_counter() - active.added_s,
            "num_input_tokens": len(output.prompt_token_ids),
            "num_inference_steps": active.context["num_inference_steps"],
        }
        return [RequestDone(active.request.request_id, trace, images=(pixels,))]
