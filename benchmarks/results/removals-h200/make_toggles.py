"""Turn a tree of main's code into one whose mechanisms can be switched: make_toggles.py TREE

The file $OMNI_TOGGLES names those of `staging`, `mrope` and `penalties` that are kept; a runner reads it when a request
begins. Rows of a request are staged over several steps, or copied once per step as the branch does.
"""
import sys
from pathlib import Path

folder = Path(sys.argv[1]) / "omni_cli/vllm_integration"


def replaced(text, *pairs):
    for old, new in pairs:
        assert text.count(old) == 1, (text.count(old), old)
        text = text.replace(old, new)
    return text


path = folder / "runner_mixins.py"
path.write_text(replaced(
    path.read_text(),
    ("from omni_cli.vllm_integration.row_ledger import",
     "from omni_cli.vllm_integration import hidden_states as per_step\nfrom omni_cli.vllm_integration.row_ledger import"),
    ("class OmniRunnerMixin(VllmRunner):\n", '''def _kept() -> set[str]:
    from pathlib import Path

    return set(Path(os.environ["OMNI_TOGGLES"]).read_text().split())


class OmniRunnerMixin(VllmRunner):
'''),
    ("        if is_decoding and (starts", '        if "mrope" in self._kept_mechanisms and is_decoding and (starts'),
    ("        self._has_later_positions = False\n",
     "        self._has_later_positions = False\n        self._kept_mechanisms = _kept()\n"),
    ("    def _begin_request(self, request: NewRequestData) -> None:\n        self.request_payloads[",
     "    def _begin_request(self, request: NewRequestData) -> None:\n        self._kept_mechanisms = _kept()\n        self.request_payloads["),
    ("        self.row_ledger = RowLedger()\n",
     "        self.row_ledger = RowLedger()\n        self.hidden_states = per_step.HiddenStateTracker()\n"),
    ("            self.row_ledger.begin(request.req_id)\n",
     '            (self.row_ledger if "staging" in self._kept_mechanisms else self.hidden_states).begin(request.req_id)\n'),
    ("        if self.speculative_config is None:  #", '        if self.speculative_config is None and "penalties" in self._kept_mechanisms:  #'),
    ("        self.row_ledger.forget(request_id)\n",
     "        self.row_ledger.forget(request_id)\n        self.hidden_states.forget(request_id)\n"),
    ("            self.row_ledger.keep_cached_rows(\n", "            sizes = (\n"),
    ("                self.model_config.dtype,\n            )\n",
     "                self.model_config.dtype,\n            )\n"
     "            self.row_ledger.keep_cached_rows(*sizes)\n            self.hidden_states.keep_cached_rows(*sizes)\n"),
    ("        state = self.execute_model_state\n        is_wanted", '''        state = self.execute_model_state
        if self.hidden_states.requests:
            return self._sample_per_step(state, grammar_output)
        is_wanted'''),
    ("    def _sample(self, logits", '''    def _sample_per_step(self, state: Any, grammar_output: object) -> object:
        spans = self._wanted_spans() if state is not None and self.returns_outputs else []
        pending = self._start_copy(state.hidden_states, spans) if spans else None
        with mark("sampling"):
            output = super().sample_tokens(grammar_output)
        if pending is None:
            return output
        return with_payloads(output, lambda plain: self._unsent_rows(spans, pending, plain))

    def _wanted_spans(self) -> list[Any]:
        wanted = self.hidden_states.requests
        return [
            per_step.ComputedSpan(
                span.request_id, span.start, span.length, span.row, span.num_draft_tokens,
                wanted[span.request_id], self.requests[span.request_id].block_ids[0],
            )
            for span in self._spans()
            if span.request_id in wanted
        ]

    def _start_copy(self, hidden_states: torch.Tensor, spans: list[Any]) -> Any:
        rows = hidden_states if self._handoff_rows is None else self._handoff_rows
        parts = [rows[begin:end] for begin, end in _joined(spans)]
        with mark("output copy"):
            return self.output_copy.start(parts[0] if len(parts) == 1 else torch.cat(parts), reused=True)

    def _unsent_rows(self, spans: list[Any], pending: Any, output: ModelRunnerOutput) -> dict[str, torch.Tensor]:
        with mark("wait for output copy"):
            rows = pending.get()
        computed = list(zip(spans, rows.split([span.length for span in spans]), strict=True))
        return self.hidden_states.resolve(computed)

    def _sample(self, logits'''),
))
