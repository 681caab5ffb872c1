"""A stage that generates frames of codes: a talker or a backbone with a code predictor."""

from __future__ import annotations

from itertools import accumulate

import torch
from vllm.outputs import RequestOutput

from omni_cli.backends.vllm.input_embeds_stage import InputEmbedsStage
from omni_cli.backends.vllm.stage import ActiveRequest
from omni_cli.core.errors import StageError
from omni_cli.models.codec.settings import CodecConfig
from omni_cli.stage.messages import Report, RequestDone
from omni_cli.stage.payloads import encode_additional_information

# In a stage output: codes (num_frames, num_codebooks) int64.
CODES = "codes"
# A list of one number: of the first frames of `codes` that come before the answer and are not heard.
NUM_BEFORE = "num_before"
# Frames are sent to the codec in parts, each of which costs a message: to the end of a chunk, or so many.
FRAMES_PER_PART = 4
# In the order in which the worker sends them after the codes.
_STEP_TIMES = ("code_predictor_s", "backbone_s")


class StepStage(InputEmbedsStage):
    """A stage whose worker sends a row of `num_codebooks` numbers beside each token that vLLM samples."""

    makes_text = False
    num_codebooks: int

    def engine_args(self) -> dict[str, object]:
        return {**super().engine_args(), "worker_cls": self.worker_cls("code")}

    def take_rows(self, active: ActiveRequest) -> torch.Tensor | None:
        """Return the rows (num_tokens, num_codebooks) since the last call, None for none; note their steps' times."""
        rows = self.processor.take_hidden_rows(active.request.request_id)
        if rows is None:
            return None
        for name, spent in zip(_STEP_TIMES, rows[:, self.num_codebooks :].T.tolist(), strict=True):
            active.context.setdefault(name, []).extend(nanoseconds / 1e9 for nanoseconds in spent)
        return rows[:, : self.num_codebooks]

    def finish(self, active: ActiveRequest, output: RequestOutput) -> RequestDone:
        report = super().finish(active, output)
        report.trace.update({name: active.context.get(name, []) for name in _STEP_TIMES})
        return report


class FrameStage(StepStage):
    """Receives the first codes of its frames as the tokens that vLLM samples, and the others beside them."""

    def engine_args(self) -> dict[str, object]:
        # Codes reach the first pipeline rank with the next step, which must not start before they are known.
        pipelined = {"async_scheduling": False} if self.spec.stage.pipeline_parallel_size > 1 else {}
        return {**super().engine_args(), **pipelined}

    def num_spoken(self, active: ActiveRequest) -> int:
        """Count the frames so far that are speech: all but the last, which ends it or is where it was cut."""
        # As in Qwen's references. Before the end, a token that vLLM sampled is not the last.
        return max(0, len(active.token_ids) - bool(active.context["finished"]))

    def num_reported(self, active: ActiveRequest) -> int:
        """Count the frames of a finished request that are part of its `output_codes`."""
        return self.num_spoken(active)

    def output(self, active: ActiveRequest, output: RequestOutput) -> list[Report]:
        rows = self.take_rows(active)
        if rows is not None:
            active.context.setdefault("codes", []).extend(rows.unbind())
            if self.is_end(active):
                active.context["ended"] = True
                if not output.finished:
                    output.finished, output.outputs[0].finish_reason = True, "stop"
                    self.engine.abort_request([active.request.request_id])
                    self.processor.forget(active.request.request_id)
        active.context["finished"] = output.finished
        return super().output(active, output)

    def is_end(self, active: ActiveRequest) -> bool:
        """True if the latest of `codes` in the context end the speech; vLLM checks the first code only."""
        return False

    def frames(self, active: ActiveRequest, begin: int, end: int) -> torch.Tensor:
        """Return frames [begin, end) of a request, (num_frames, num_codebooks) int64."""
        rows = active.context.get("codes", [])[begin : max(begin, end)]
        frames = torch.stack(rows) if rows else torch.zeros((0, self.num_codebooks), dtype=torch.long)
        token_ids = active.token_ids[begin : max(begin, end)]
        if frames[:, 0].tolist() != token_ids:
            raise StageError(
                f"{len(frames)} frames of codes do not fit {len(token_ids)} tokens", stage=self.spec.stage.name
            )
        return frames

    def speech(self, active: ActiveRequest, begin: int, end: int) -> torch.Tensor:
        """Return [begin, end) of the frames that `num_spoken` counts, as the next stage takes them."""
        return self.frames(active, begin, end)

    def payload(self, active: ActiveRequest, begin: int, end: int) -> dict[str, object]:
        """Return the stage output of [begin, end) of these frames."""
        return {CODES: self.speech(active, begin, end)}

    def finish(self, active: ActiveRequest, output: RequestOutput) -> RequestDone:
        report = super().finish(active, output)
        report.trace["output_codes"] = self.frames(active, 0, self.num_reported(active)).tolist()
        return report

    def stage_output(self, active: ActiveRequest, output: RequestOutput) -> bytes:
        return encode_additional_information(self.payload(active, 0, self.num_spoken(active)))

    def partial_output(self, active: ActiveRequest, output: RequestOutput) -> bytes | None:
        begin, end, codec = active.context.get("num_sent", 0), self.num_spoken(active), self.spec.next_stage
        *growing, most = codec.chunk_sizes if isinstance(codec, CodecConfig) else (FRAMES_PER_PART,)
        rest = most - (begin - sum(growing)) % most
        chunk_end = next((filled for filled in accumulate(growing) if filled > begin), begin + rest)
        if end < min(chunk_end, begin + FRAMES_PER_PART) and not output.finished:
            return None
        active.context["num_sent"] = end
        return encode_additional_information(self.payload(active, begin, end))
