#!/usr/bin/env bash
# Expected: with `pattern`, a grammar of a JSON Schema bounds the text that the answer's JSON stands for, so that a backslash,
#   a quote, a tab or a line feed of the pattern is written with its escape.
# Happens: xgrammar 0.2.8 and 0.2.9 compare the pattern with the JSON itself. They refuse the valid answer and allow one that
#   has the pattern's characters as they are: most are not JSON, and C:\temp is read as "C:", a tab and "emp". Nothing is raised
#   or logged. llguidance 1.7.6 does as expected.
# Source: what `GrammarMatcher` accepts by the grammar of `GrammarCompiler.compile_json_schema`. vLLM 0.32.0 requires xgrammar 0.2.8,
#   prefers it, and does not count such patterns among what it lacks: `has_xgrammar_unsupported_json_features` of
#   `vllm/v1/structured_output/backend_xgrammar.py` (run apart).
# Why users care: a model that has to name a folder of Windows, a quotation or two lines cannot give an answer that a client can
#   read, however often it is asked, and some paths arrive as other ones without an error.
# Exit code: 0 as described, 1 if the output is another one.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet torch==2.13.0 numpy==2.3.5 transformers==5.19.0 llguidance==1.7.6
for release in 0.2.8 0.2.9; do
  "$folder/venv/bin/pip" install --quiet xgrammar==$release
  "$folder/venv/bin/python" - <<'PYTHON' 2>>"$folder/errors"
import json
from importlib.metadata import version

import llguidance
import xgrammar

END = 256
vocabulary = [bytes([value]) for value in range(END)] + [b"<end>"]
compiler = xgrammar.GrammarCompiler(xgrammar.TokenizerInfo(vocabulary, stop_token_ids=[END]))
tokenizer = llguidance.LLTokenizer("byte")


def meaning(text):
    try:
        return ascii(json.loads(text))
    except ValueError:
        return "no JSON"


for pattern, value in (
    (r"^[A-Z]:\\[a-z]+$", r"C:\users"),
    (r"^[A-Z]:\\[a-z]+$", r"C:\temp"),
    (r'^"[a-z]+"$', '"quoted"'),
    (r"^[a-z]+\t[a-z]+$", "left\tright"),
    (r"^[a-z]+\n[a-z]+$", "one\ntwo"),
):
    schema = json.dumps({"type": "string", "pattern": pattern})
    accepted, expected = [], []
    for text in (json.dumps(value), f'"{value}"'):
        matcher = xgrammar.GrammarMatcher(compiler.compile_json_schema(schema))
        if matcher.accept_string(text) and matcher.accept_token(END):
            accepted.append(meaning(text))
        guide = llguidance.LLMatcher(tokenizer, llguidance.LLMatcher.grammar_from_json_schema(schema), log_level=0)
        if guide.consume_tokens(list(text.encode())) and guide.is_accepting():
            expected.append(meaning(text))
    seen = f"written by its grammar: {', '.join(accepted)}; by llguidance: {', '.join(expected)}"
    print(f"xgrammar {version('xgrammar')}, {ascii(value)} {seen}")
PYTHON
done | tee "$folder/seen"
diff "$folder/seen" - <<'EXPECTED' || exit 1
xgrammar 0.2.8, 'C:\\users' written by its grammar: no JSON; by llguidance: 'C:\\users'
xgrammar 0.2.8, 'C:\\temp' written by its grammar: 'C:\temp'; by llguidance: 'C:\\temp'
xgrammar 0.2.8, '"quoted"' written by its grammar: no JSON; by llguidance: '"quoted"'
xgrammar 0.2.8, 'left\tright' written by its grammar: no JSON; by llguidance: 'left\tright'
xgrammar 0.2.8, 'one\ntwo' written by its grammar: no JSON; by llguidance: 'one\ntwo'
xgrammar 0.2.9, 'C:\\users' written by its grammar: no JSON; by llguidance: 'C:\\users'
xgrammar 0.2.9, 'C:\\temp' written by its grammar: 'C:\temp'; by llguidance: 'C:\\temp'
xgrammar 0.2.9, '"quoted"' written by its grammar: no JSON; by llguidance: '"quoted"'
xgrammar 0.2.9, 'left\tright' written by its grammar: no JSON; by llguidance: 'left\tright'
xgrammar 0.2.9, 'one\ntwo' written by its grammar: no JSON; by llguidance: 'one\ntwo'
EXPECTED
