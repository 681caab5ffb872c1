// https://ai-sdk.dev/providers/openai-compatible-providers
import { createOpenAI } from "@ai-sdk/openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import {
  experimental_generateSpeech as generateSpeech, experimental_transcribe as transcribe, generateImage, generateObject,
  generateText, stepCountIs, streamText, tool,
} from "ai";
import { z } from "zod";
import { BASE_URL, DESCRIPTION, KEY, MODEL, QUESTION, assert, check, fits, image, isMp3, main, sound } from "./checks.mjs";

const compatible = createOpenAICompatible({
  name: "omni", baseURL: BASE_URL, apiKey: KEY, includeUsage: true, supportsStructuredOutputs: true,
});
const openai = createOpenAI({ baseURL: BASE_URL, apiKey: KEY });
const Weather = z.object({ city: z.enum(["Rome", "Oslo"]), days: z.literal([1, 2]) });
const get_weather = tool({ description: DESCRIPTION, inputSchema: Weather, execute: async () => "rain" });
const TEXT = "text speech";
const shared = { model: compatible(MODEL), prompt: QUESTION, maxRetries: 0, maxOutputTokens: 16 };
const long = { ...shared, maxOutputTokens: 300, tools: { get_weather } };
const part = (data, mediaType) => [{ role: "user", content: [{ type: "text", text: "What is it?" }, { type: "file", data, mediaType }] }];
const { prompt, ...unprompted } = shared;

check("chat", TEXT, async () => {
  const { text, usage } = await generateText({ ...shared, system: "Be brief." });
  assert(text && usage.totalTokens);
  return text;
});
check("stream", TEXT, async () => {
  let text = "";
  for await (const piece of streamText(shared).textStream) text += piece;
  assert(text);
});
check("usage", TEXT, async () => {
  const result = streamText(shared);
  await result.consumeStream();
  assert((await result.usage).outputTokens);
});
check("json schema", TEXT, async () => {
  const { object } = await generateObject({ ...shared, maxOutputTokens: 300, schema: Weather });
  assert(fits(object));
});
check("tools auto", TEXT, async () => {
  const { text, toolCalls } = await generateText({ ...shared, tools: { get_weather } });
  assert(text || toolCalls.length);
});
check("tools required", "text", async () => {
  const { toolCalls } = await generateText({ ...long, toolChoice: "required" });
  assert(toolCalls.length && toolCalls.every((call) => fits(call.input)));
});
const toolChoice = { type: "tool", toolName: "get_weather" };
check("tools named", TEXT, async () => {
  const { toolCalls } = await generateText({ ...long, toolChoice });
  assert(toolCalls.length === 1 && fits(toolCalls[0].input));
});
check("tools streamed", TEXT, async () => {
  const result = streamText({ ...long, toolChoice });
  await result.consumeStream();
  const calls = await result.toolCalls;
  assert(calls.length === 1 && fits(calls[0].input));
});
check("tools result", TEXT, async () => {
  const { steps } = await generateText({ ...long, toolChoice, stopWhen: stepCountIs(2) });
  assert(steps.length === 2 && steps[0].toolResults[0].output === "rain");
});
check("openai.chat", TEXT, async () => assert((await generateText({ ...shared, model: openai.chat(MODEL) })).text));
check("completions", TEXT, async () => {
  assert((await generateText({ ...shared, model: compatible.completionModel(MODEL) })).text);
});
check("responses", TEXT, async () => assert((await generateText({ ...shared, model: openai(MODEL) })).text));
check("responses streamed", TEXT, async () => {
  assert(await streamText({ ...shared, model: openai(MODEL) }).text);
});
check("image in", "speech", async () => {
  assert((await generateText({ ...unprompted, messages: part(image(), "image/png") })).text);
});
check("audio in", "speech", async () => {
  assert((await generateText({ ...unprompted, messages: part(sound(), "audio/wav") })).text);
});
check("speech", "speech", async () => {
  const { audio } = await generateSpeech({ model: openai.speech(MODEL), text: "Good morning.", voice: "alloy", maxRetries: 0 });
  assert(isMp3(Buffer.from(audio.uint8Array)));
});
check("transcription", "transcription", async () => {
  assert((await transcribe({ model: openai.transcription(MODEL), audio: sound(), maxRetries: 0 })).text);
});
check("image", "image", async () => {
  const made = await generateImage({ model: compatible.imageModel(MODEL), prompt: "a red cat", size: "64x64", maxRetries: 0 });
  assert(made.image.uint8Array.length);
});

await main();
