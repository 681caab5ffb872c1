// https://github.com/openai/openai-node
import OpenAI, { toFile } from "openai";
import { zodResponseFormat, zodTextFormat } from "openai/helpers/zod";
import { z } from "zod";
import { BASE_URL, KEY, MESSAGES, MODEL, QUESTION, TOOL, assert, check, fits, image, isMp3, main, sound } from "./checks.mjs";

const client = new OpenAI({ baseURL: BASE_URL, apiKey: KEY, maxRetries: 0 });
const chat = client.chat.completions;
const ask = (fields = {}) => chat.create({ model: MODEL, messages: MESSAGES, max_tokens: 16, ...fields });
const Weather = z.object({ city: z.enum(["Rome", "Oslo"]), happy: z.boolean() });
const NAMED = { type: "function", function: { name: "get_weather" } };
const TEXT = "text speech";
// The answers of transcriptions as the package declares them, and nothing else.
const strict = z.strictObject;
const number = z.number();
const part = { id: number, seek: number, start: number, end: number, text: z.string(), tokens: z.array(number) };
const sureness = { temperature: number, avg_logprob: number, compression_ratio: number, no_speech_prob: number };
const Segment = strict({ ...part, ...sureness });
const Word = strict({ word: z.string(), start: number, end: number });
const Duration = strict({ type: z.literal("duration"), seconds: number });
const details = strict({ audio_tokens: number.optional(), text_tokens: number.optional() }).optional();
const counts = { input_tokens: number, output_tokens: number, total_tokens: number, input_token_details: details };
const Tokens = strict({ type: z.literal("tokens"), ...counts });
const logprob = strict({ token: z.string().optional(), bytes: z.array(number).optional(), logprob: number.optional() });
const logprobs = z.array(logprob).optional();
const Transcription = strict({ text: z.string(), logprobs, usage: z.union([Tokens, Duration]).optional() });
const long = { segments: z.array(Segment).optional(), words: z.array(Word).optional(), usage: Duration.optional() };
// OpenAI writes the task as well, which its package does not declare.
const Verbose = strict({ task: z.literal("transcribe"), duration: number, language: z.string(), text: z.string(), ...long });
const delta = { type: z.literal("transcript.text.delta"), delta: z.string(), segment_id: z.string().optional() };
const done = { type: z.literal("transcript.text.done"), text: z.string(), usage: Tokens.optional() };
const Event = z.union([strict({ ...delta, logprobs }), strict({ ...done, logprobs })]);
const transcribe = async (fields = {}) =>
  client.audio.transcriptions.create({ model: MODEL, file: await toFile(sound(), "speech.wav"), ...fields });

check("models", "text speech image transcription", async () => {
  const ids = [];
  for await (const model of client.models.list()) ids.push(model.id);
  assert(ids.includes(MODEL), ids.join());
});
check("chat", TEXT, async () => {
  const answer = await ask();
  assert(answer.choices[0].message.content && answer.usage.total_tokens);
  return answer.choices[0].message.content;
});
check("stream", TEXT, async () => {
  let text = "";
  for await (const chunk of await ask({ stream: true })) text += chunk.choices[0]?.delta.content ?? "";
  assert(text);
  return text;
});
check("stream helper", TEXT, async () => {
  const response_format = zodResponseFormat(Weather, "weather");
  const stream = chat.stream({ model: MODEL, messages: MESSAGES, response_format, max_tokens: 200 });
  assert(JSON.parse(await stream.finalContent()).city);
});
check("usage", TEXT, async () => {
  let usage;
  for await (const chunk of await ask({ stream: true, stream_options: { include_usage: true } })) usage = chunk.usage;
  assert(usage.completion_tokens);
});
check("history", TEXT, async () => {
  const reply = (await ask()).choices[0].message;
  const messages = [{ role: "developer", content: "Be brief." }, ...MESSAGES, reply, { role: "user", content: "And of Italy?" }];
  assert((await ask({ messages })).choices[0].message);
});
check("n", TEXT, async () => assert((await ask({ n: 2, temperature: 1.5 })).choices.length === 2));
check("logprobs", TEXT, async () => {
  const { content } = (await ask({ logprobs: true, top_logprobs: 2 })).choices[0].logprobs;
  assert(content.every((token) => token.top_logprobs.length >= 2));
});
check("json schema", TEXT, async () => {
  const response_format = zodResponseFormat(Weather, "weather");
  const answer = await chat.parse({ model: MODEL, messages: MESSAGES, response_format, max_tokens: 200 });
  assert(answer.choices[0].message.parsed);
});
check("tools auto", TEXT, async () => {
  const { message } = (await ask({ tools: [TOOL], tool_choice: "auto" })).choices[0];
  assert(message.content || message.tool_calls.length);
});
check("tools required", TEXT, async () => {
  const fields = { tools: [TOOL], tool_choice: "required", parallel_tool_calls: false, max_tokens: 300 };
  const { message } = (await ask(fields)).choices[0];
  assert(message.tool_calls.length && message.tool_calls.every((call) => fits(call.function.arguments)));
});
check("tools named", TEXT, async () => {
  const { message } = (await ask({ tools: [TOOL], tool_choice: NAMED, max_tokens: 300 })).choices[0];
  assert(message.tool_calls.length === 1 && fits(message.tool_calls[0].function.arguments));
});
check("tools streamed", TEXT, async () => {
  const stream = chat.stream({ model: MODEL, messages: MESSAGES, tools: [TOOL], tool_choice: NAMED, max_tokens: 300 });
  const { message } = (await stream.finalChatCompletion()).choices[0];
  assert(message.tool_calls.length === 1 && fits(message.tool_calls[0].function.arguments));
});
check("tools result", TEXT, async () => {
  // The client calls the function and sends its result back.
  let calls = 0;
  const run = (given) => {
    assert(fits(given));
    calls += 1;
    return "rain";
  };
  const tool = { ...TOOL, function: { ...TOOL.function, parse: JSON.parse, function: run } };
  const fields = { model: MODEL, messages: MESSAGES, tools: [tool], tool_choice: NAMED, max_tokens: 300 };
  await chat.runTools(fields, { maxChatCompletions: 2 }).done();
  assert(calls === 1, `${calls} calls`);
});
check("completions", TEXT, async () => {
  const answer = await client.completions.create({ model: MODEL, prompt: "Once upon a time", max_tokens: 8 });
  assert(answer.choices[0].text);
});
check("responses", TEXT, async () => {
  const answer = await client.responses.create({ model: MODEL, input: QUESTION, max_output_tokens: 16 });
  assert(answer.output_text && answer.usage.output_tokens);
});
check("responses streamed", TEXT, async () => {
  const text_format = { format: zodTextFormat(Weather, "weather") };
  const stream = client.responses.stream({ model: MODEL, input: QUESTION, text: text_format, max_output_tokens: 200 });
  let text = "";
  for await (const event of stream) if (event.type === "response.output_text.delta") text += event.delta;
  assert(text && (await stream.finalResponse()).output_text === text);
});
check("responses tools", TEXT, async () => {
  const tools = [{ type: "function", ...TOOL.function, strict: true }];
  const fields = { model: MODEL, input: QUESTION, tools, tool_choice: "required", parallel_tool_calls: false };
  const calls = (await client.responses.create({ ...fields, max_output_tokens: 300 })).output.filter((item) => item.type === "function_call");
  assert(calls.length && calls.every((call) => fits(call.arguments)));
});
check("image in", "speech", async () => {
  const url = `data:image/png;base64,${image().toString("base64")}`;
  const content = [{ type: "text", text: "What is it?" }, { type: "image_url", image_url: { url } }];
  assert((await ask({ messages: [{ role: "user", content }] })).choices[0].message.content);
});
check("audio in", "speech", async () => {
  const content = [{ type: "input_audio", input_audio: { data: sound().toString("base64"), format: "wav" } }];
  assert((await ask({ messages: [{ role: "user", content }] })).choices[0].message.content);
});
check("audio out", "speech", async () => {
  const answer = await ask({ modalities: ["text", "audio"], audio: { voice: "alloy", format: "mp3" } });
  assert(isMp3(Buffer.from(answer.choices[0].message.audio.data, "base64")));
});
check("audio out streamed", "speech", async () => {
  const fields = { modalities: ["text", "audio"], audio: { voice: "alloy", format: "pcm16" }, stream: true };
  let data = "";
  for await (const chunk of await ask(fields)) data += chunk.choices[0]?.delta.audio?.data ?? "";
  assert(data);
});
check("speech", "speech", async () => {
  const answer = await client.audio.speech.create({ model: MODEL, voice: "alloy", input: "Good morning." });
  assert(isMp3(Buffer.from(await answer.arrayBuffer())));
});
check("transcription", "transcription", async () => {
  assert(Transcription.parse(await transcribe()).text);
});
check("transcription formats", "transcription", async () => {
  for (const response_format of ["text", "srt", "vtt"]) assert(typeof (await transcribe({ response_format })) === "string");
  const verbose = (fields) => transcribe({ response_format: "verbose_json", ...fields });
  const plain = Verbose.parse(await verbose({}));
  assert(plain.segments && !plain.words);
  const timed = Verbose.parse(await verbose({ timestamp_granularities: ["word", "segment"] }));
  assert(timed.words && timed.segments);
  assert(Verbose.parse(await verbose({ timestamp_granularities: ["word"] })).words);
});
check("transcription streamed", "transcription", async () => {
  let text = "";
  let last;
  for await (const event of await transcribe({ stream: true })) {
    last = Event.parse(event);
    text += last.delta ?? "";
  }
  assert(last.type === "transcript.text.done" && last.text === text);
});
check("image", "image", async () => {
  const made = await client.images.generate({ model: MODEL, prompt: "a red cat", size: "64x64", n: 2 });
  assert(made.data.length === 2 && made.data.every((one) => one.b64_json));
});

await main();
