#!/usr/bin/env bash
# Expected: an object of a JSON Schema with `anyOf`, `allOf` or `$ref` beside its own `properties` and `required` is bound by all of
#   them, as JSON Schema has it since 2019-09.
# Happens: xgrammar 0.2.8 and 0.2.9 keep the `anyOf`, `allOf` or `$ref` alone and drop the rest, `type` too. With the usual form of
#   "at least one of two", any JSON is an answer, also a number; with a base in `allOf`, the invalid answer is allowed and
#   the valid ones refused. Nothing is raised or logged. llguidance 1.7.6 keeps all of it, with the properties in one order.
# Source: what `GrammarMatcher` accepts by the grammar of `GrammarCompiler.compile_json_schema`. vLLM 0.32.0 requires xgrammar 0.2.8,
#   prefers it, and counts only an `allOf` of two or more among what it lacks: `has_xgrammar_unsupported_json_features` of
#   `vllm/v1/structured_output/backend_xgrammar.py` (run apart).
# Why users care: OpenAPI extends a type by `allOf` with a `$ref`, and tools ask for "one of these" by `anyOf` of `required`. The answer
#   is JSON, so that nobody notices until a field is missing; in the second case it can never have all fields.
# Exit code: 0 as described, 1 if the output is another one.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet torch==2.13.0 numpy==2.3.5 transformers==5.19.0 llguidance==1.7.6 jsonschema==4.26.0
for release in 0.2.8 0.2.9; do
  "$folder/venv/bin/pip" install --quiet xgrammar==$release
  "$folder/venv/bin/python" - <<'PYTHON' 2>>"$folder/errors"
import json
from importlib.metadata import version

import jsonschema
import llguidance
import xgrammar

END = 256
vocabulary = [bytes([value]) for value in range(END)] + [b"<end>"]
compiler = xgrammar.GrammarCompiler(xgrammar.TokenizerInfo(vocabulary, stop_token_ids=[END]))
tokenizer = llguidance.LLTokenizer("byte")


def by_xgrammar(schema, text):
    matcher = xgrammar.GrammarMatcher(compiler.compile_json_schema(schema))
    return matcher.accept_string(text) and matcher.accept_token(END)


def by_llguidance(schema, text):
    matcher = llguidance.LLMatcher(tokenizer, llguidance.LLMatcher.grammar_from_json_schema(schema), log_level=0)
    return matcher.consume_tokens(list(text.encode())) and matcher.is_accepting()


number = {"type": "integer"}
base = {"type": "object", "properties": {"id": number}, "required": ["id"]}
own = {"type": "object", "properties": {"size": number}, "required": ["size"], "$defs": {"base": base}}
one_of_two = [{"required": ["id"]}, {"required": ["size"]}]
schemas = {
    "anyOf": {"type": "object", "properties": {"id": number, "size": number}, "additionalProperties": False, "anyOf": one_of_two},
    "allOf": {**own, "allOf": [{"$ref": "#/$defs/base"}]},
    "$ref": {**own, "$ref": "#/$defs/base"},
}
answers = ['{"id": 1}', '{"id": 1, "size": 2}', '{"size": 2, "id": 1}', '{"id": "x", "size": []}', "{}", "3", '"text"']
for name, schema in schemas.items():
    valid = {text for text in answers if jsonschema.Draft202012Validator(schema).is_valid(json.loads(text))}
    for judge, accepts in (("xgrammar", by_xgrammar), ("llguidance", by_llguidance)):
        accepted = {text for text in answers if accepts(json.dumps(schema), text)}
        wrong, missing = ([text for text in answers if text in some] for some in (accepted - valid, valid - accepted))
        print(f"{judge} {version(judge)}, {name}: allows of the invalid", *wrong, "| refuses of the valid", *missing)
PYTHON
done | tee "$folder/seen"
diff "$folder/seen" - <<'EXPECTED' || exit 1
xgrammar 0.2.8, anyOf: allows of the invalid {"id": "x", "size": []} {} 3 "text" | refuses of the valid
llguidance 1.7.6, anyOf: allows of the invalid | refuses of the valid {"size": 2, "id": 1}
xgrammar 0.2.8, allOf: allows of the invalid {"id": 1} | refuses of the valid {"id": 1, "size": 2} {"size": 2, "id": 1}
llguidance 1.7.6, allOf: allows of the invalid | refuses of the valid {"id": 1, "size": 2}
xgrammar 0.2.8, $ref: allows of the invalid {"id": 1} | refuses of the valid {"id": 1, "size": 2} {"size": 2, "id": 1}
llguidance 1.7.6, $ref: allows of the invalid | refuses of the valid {"id": 1, "size": 2}
xgrammar 0.2.9, anyOf: allows of the invalid {"id": "x", "size": []} {} 3 "text" | refuses of the valid
llguidance 1.7.6, anyOf: allows of the invalid | refuses of the valid {"size": 2, "id": 1}
xgrammar 0.2.9, allOf: allows of the invalid {"id": 1} | refuses of the valid {"id": 1, "size": 2} {"size": 2, "id": 1}
llguidance 1.7.6, allOf: allows of the invalid | refuses of the valid {"id": 1, "size": 2}
xgrammar 0.2.9, $ref: allows of the invalid {"id": 1} | refuses of the valid {"id": 1, "size": 2} {"size": 2, "id": 1}
llguidance 1.7.6, $ref: allows of the invalid | refuses of the valid {"id": 1, "size": 2}
EXPECTED
