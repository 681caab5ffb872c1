// The page of `omni serve`: a client of its routes. Answers of models become text and media, never markup.
"use strict";

const find = (id) => document.getElementById(id);
const log = find("log"), prompt_ = find("prompt");
const PCM_RATE = 24000; // of `pcm16` in OpenAI's API
const READY_EVERY_MS = 3000, VIDEO_EVERY_MS = 500;

let model = null; // as in GET /v1/models
let kind = null; // what a request makes: chat, speech, image or video
let history = []; // of the conversation, as messages
let files = []; // attached: {file, type} with the type "image", "audio" or "video"
let running = null; // the AbortController of the request that runs
let recorder = null;

const FIELDS = {
  chat: [["system", "System prompt", "text"], ["temperature", "Temperature", "number"], ["top_p", "Top p", "number"], ["max_tokens", "Tokens at most", "number"]],
  speech: [["max_audio_tokens", "Tokens at most", "number"]],
  image: [["size", "Size, such as 512x512", "text"], ["num_inference_steps", "Steps", "number"], ["negative_prompt", "Negative prompt", "text"]],
  transcription: [["language", "Language, such as en", "text"]],
  video: [["size", "Size, such as 512x512", "text"], ["seconds", "Seconds", "number"], ["num_inference_steps", "Steps", "number"]],
};
const HINTS = {
  chat: "Ask something. Enter sends, Shift+Enter begins a line, Escape stops.",
  speech: "Write what is to be spoken.",
  image: "Describe an image.",
  transcription: "Attach or record a sound.",
  video: "Describe a video.",
};

function add(parent, tag, className, text) {
  const element = document.createElement(tag);
  if (className) element.className = className;
  if (text !== undefined) element.textContent = text;
  parent.append(element);
  return element;
}

function showEnd() {
  log.scrollTop = log.scrollHeight;
}

// --- requests

class Refused extends Error {
  constructor(message, status) {
    super(message);
    this.status = status;
  }
}

async function call(path, options = {}) {
  const key = sessionStorage.getItem("omni-key");
  const headers = { ...options.headers };
  if (key) headers.Authorization = `Bearer ${key}`;
  if (options.json) {
    headers["Content-Type"] = "application/json";
    options = { ...options, method: "POST", body: JSON.stringify(options.json) };
  }
  const response = await fetch(path, { ...options, headers });
  if (response.ok) return response;
  const found = await response.json().catch(() => null);
  if (response.status === 401) askForKey();
  throw new Refused(found?.error?.message ?? `status ${response.status}`, response.status);
}

async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) throw new TypeError("the stream ended early");
    const blocks = (rest + value).split("\n\n");
    rest = blocks.pop();
    for (const block of blocks) {
      const data = block.split("\n").filter((line) => line.startsWith("data:")).map((line) => line.slice(5).trim()).join("\n");
      if (data === "[DONE]") return;
      if (!data) continue;
      const event = JSON.parse(data);
      if (event.error) throw new Refused(event.error.message);
      yield event;
    }
  }
}

function settings() {
  const given = {};
  for (const input of find("fields").querySelectorAll("input, select")) {
    // A box that nobody changed shows what the server does of itself.
    if (input.value !== "" && input.value !== input.defaultValue) given[input.name] = input.type === "number" ? Number(input.value) : input.value;
  }
  return given;
}

function asForm(fields, given, name) {
  const form = new FormData();
  for (const [key, value] of Object.entries(fields)) form.append(key, value);
  for (const { file } of given) form.append(name, file);
  return form;
}

function dataUrl(blob) {
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(reader.result);
    reader.onerror = () => reject(reader.error);
    reader.readAsDataURL(blob);
  });
}

// --- sound

class Speech {
  // Plays pieces of PCM as they arrive; `wav` has all of them.
  constructor() {
    this.context = new AudioContext({ sampleRate: PCM_RATE });
    this.next = 0;
    this.pieces = [];
    this.length = 0;
  }

  add(base64) {
    const bytes = Uint8Array.from(atob(base64), (letter) => letter.charCodeAt(0));
    const samples = new Int16Array(bytes.buffer);
    if (!samples.length) return;
    this.pieces.push(samples);
    this.length += samples.length;
    const buffer = this.context.createBuffer(1, samples.length, PCM_RATE);
    buffer.copyToChannel(Float32Array.from(samples, (sample) => sample / 32768), 0);
    const source = this.context.createBufferSource();
    source.buffer = buffer;
    source.connect(this.context.destination);
    this.next = Math.max(this.next, this.context.currentTime);
    source.start(this.next);
    this.next += buffer.duration;
  }

  get seconds() {
    return this.length / PCM_RATE;
  }

  wav() {
    const header = new DataView(new ArrayBuffer(44));
    const text = (at, word) => [...word].forEach((letter, index) => header.setUint8(at + index, letter.charCodeAt(0)));
    const size = 2 * this.length;
    text(0, "RIFF");
    header.setUint32(4, 36 + size, true);
    text(8, "WAVEfmt ");
    header.setUint32(16, 16, true);
    header.setUint16(20, 1, true);
    header.setUint16(22, 1, true);
    header.setUint32(24, PCM_RATE, true);
    header.setUint32(28, 2 * PCM_RATE, true);
    header.setUint16(32, 2, true);
    header.setUint16(34, 16, true);
    text(36, "data");
    header.setUint32(40, size, true);
    return new Blob([header, ...this.pieces], { type: "audio/wav" });
  }
}

function showMedia(parent, tag, blob) {
  const media = add(parent, tag, "made");
  media.src = URL.createObjectURL(blob);
  if (tag !== "img") media.controls = true;
  return media;
}

// --- one request of each kind

async function chat(turn, text, given, signal) {
  const parts = [];
  for (const { file, type } of given) {
    const url = await dataUrl(file);
    if (type === "image") parts.push({ type: "image_url", image_url: { url } });
    else if (type === "video") parts.push({ type: "video_url", video_url: { url } });
    else parts.push({ type: "input_audio", input_audio: { data: url.slice(url.indexOf(",") + 1), format: file.name.split(".").pop() } });
  }
  if (text) parts.push({ type: "text", text });
  const asked = { role: "user", content: given.length ? parts : text };
  const { system, voice, ...sampling } = settings();
  const first = system ? [{ role: "system", content: system }] : [];
  const body = { ...sampling, messages: [...first, ...history, asked], stream: true, return_stage_times: true };
  body.stream_options = { include_usage: true };
  const speech = find("speak").checked ? new Speech() : null;
  if (speech) {
    body.modalities = ["text", "audio"];
    body.audio = { format: "pcm16", voice: voice || "default" };
  }
  const answer = add(turn, "p", "answer"), began = performance.now();
  const { value } = find("fields").querySelector("[name=temperature]");
  const facts = { unused: sampling.top_p !== undefined && value !== "" && Number(value) === 0 };
  let thoughts = null;
  try {
    const response = await call("/v1/chat/completions", { json: body, signal });
    for await (const event of events(response)) {
      const [choice] = event.choices, delta = choice?.delta ?? {};
      const audio = delta.audio?.data;
      if (delta.content || delta.reasoning_content || audio) facts.first ??= performance.now() - began;
      if (delta.reasoning_content) {
        if (!thoughts) {
          const details = document.createElement("details");
          add(details, "summary", "", "Reasoning");
          thoughts = add(details, "p", "answer");
          answer.before(details);
        }
        thoughts.append(delta.reasoning_content);
      }
      if (delta.content) answer.append(delta.content);
      if (audio) {
        facts.firstSound ??= performance.now() - began;
        speech.add(audio);
      }
      if (choice?.finish_reason === "length") facts.cut = true;
      if (event.stages) facts.stages = event.stages;
      if (event.usage) facts.tokens = event.usage.completion_tokens_details.text_tokens;
      facts.seed = event.seed;
      showEnd();
    }
    facts.total = performance.now() - began;
    history.push(asked, { role: "assistant", content: answer.textContent });
  } finally {
    if (speech?.length) {
      showMedia(turn, "audio", speech.wav());
      facts.sound = speech.seconds;
    }
    if (signal.aborted) {
      speech?.context.close();
      // What is there of a stopped answer belongs to the conversation.
      if (answer.textContent) history.push(asked, { role: "assistant", content: answer.textContent });
    }
  }
  return facts;
}

async function speech(turn, text, _given, signal) {
  const began = performance.now();
  const response = await call("/v1/audio/speech", { json: { ...settings(), input: text, response_format: "wav" }, signal });
  const media = showMedia(turn, "audio", await response.blob());
  const facts = { total: performance.now() - began, seed: response.headers.get("X-Seed") };
  await new Promise((resolve) => (media.onloadedmetadata = media.onerror = resolve));
  return { ...facts, sound: media.duration, cut: response.headers.get("X-Finish-Reason") === "length" };
}

async function transcription(turn, text, given, signal) {
  const fields = { ...settings(), stream: true, ...(text && { prompt: text }) };
  const answer = add(turn, "p", "answer"), began = performance.now();
  const facts = {};
  const response = await call("/v1/audio/transcriptions", { method: "POST", body: asForm(fields, given, "file"), signal });
  for await (const event of events(response)) {
    facts.first ??= performance.now() - began;
    if (event.delta) answer.append(event.delta);
    facts.tokens = event.usage?.output_tokens;
    if (event.type === "transcript.text.done") break;
  }
  return { ...facts, total: performance.now() - began };
}

async function image(turn, text, given, signal) {
  const fields = { ...settings(), prompt: text, response_format: "b64_json", return_stage_times: true };
  const began = performance.now();
  const response = given.length
    ? await call("/v1/images/edits", { method: "POST", body: asForm(fields, given, "image[]"), signal })
    : await call("/v1/images/generations", { json: fields, signal });
  const reply = await response.json();
  const facts = { total: performance.now() - began, seed: reply.seed, stages: reply.stages };
  for (const item of reply.data) {
    const made = document.createElement("img");
    made.className = "made";
    made.alt = text;
    made.src = `data:image/${reply.output_format};base64,${item.b64_json}`;
    if (given.length) compare(turn, given[0].file, made);
    else turn.append(made);
  }
  return facts;
}

function compare(turn, file, made) {
  const frame = add(turn, "div", "compare");
  frame.append(made);
  const before = showMedia(frame, "img", file);
  before.className = "made before";
  before.alt = "before";
  const label = add(turn, "label", "", "Before"), slider = add(label, "input");
  slider.type = "range";
  slider.setAttribute("aria-label", "Share of the image from before");
  label.append("After");
  const cut = () => (before.style.clipPath = `inset(0 ${slider.value}% 0 0)`);
  slider.oninput = cut;
  cut();
}

async function video(turn, text, given, signal) {
  const began = performance.now();
  const form = asForm({ ...settings(), prompt: text }, given, "input_reference");
  let job = await (await call("/v1/videos", { method: "POST", body: form, signal })).json();
  const bar = add(turn, "progress");
  bar.max = 100;
  try {
    while (job.status === "queued" || job.status === "in_progress") {
      await new Promise((resolve) => setTimeout(resolve, VIDEO_EVERY_MS));
      job = await (await call(`/v1/videos/${job.id}`, { signal })).json();
      bar.value = job.progress;
    }
  } catch (error) {
    if (signal.aborted) await call(`/v1/videos/${job.id}`, { method: "DELETE" }).catch(() => null);
    throw error;
  } finally {
    bar.remove();
  }
  if (job.status === "failed") throw new Refused(job.error.message);
  const total = performance.now() - began;
  showMedia(turn, "video", await (await call(`/v1/videos/${job.id}/content`, { signal })).blob());
  return { total };
}

const MAKE = { chat, speech, transcription, image, video };

// --- what a request took

function seconds(ms) {
  return ms < 1000 ? `${Math.round(ms)} ms` : `${(ms / 1000).toFixed(2)} s`;
}

function showFacts(turn, facts) {
  const said = [];
  if (facts.first !== undefined) said.push(`first token ${seconds(facts.first)}`);
  if (facts.firstSound !== undefined) said.push(`first sound ${seconds(facts.firstSound)}`);
  if (facts.total !== undefined) said.push(`total ${seconds(facts.total)}`);
  if (facts.tokens) said.push(`${facts.tokens} tokens`);
  if (facts.sound) {
    said.push(`${facts.sound.toFixed(2)} s of sound`);
    if (facts.total) said.push(`real-time factor ${(facts.total / 1000 / facts.sound).toFixed(2)}`);
  }
  if (facts.seed !== undefined && facts.seed !== null) said.push(`seed ${facts.seed}`);
  if (facts.cut) said.push("cut at the limit of tokens");
  if (facts.unused) said.push("greedy: top p has no effect");
  add(turn, "p", "facts", said.join(" · "));
  if (!facts.stages?.length) return;
  const end = Math.max(...facts.stages.map((stage) => stage.began_s + stage.latency_s));
  const rows = add(turn, "div", "stages");
  for (const stage of facts.stages) {
    add(rows, "span", "", stage.name);
    const work = add(add(rows, "div", "lane"), "div", "work");
    work.style.marginLeft = `${(100 * stage.began_s) / end}%`;
    work.style.width = `${(100 * stage.latency_s) / end}%`;
    add(rows, "span", "time", seconds(1000 * stage.latency_s));
  }
}

// --- the composer

async function send() {
  const text = prompt_.value.trim(), given = files;
  if (running || !model || (!text && !given.length)) return;
  find("hint").hidden = true;
  const turn = add(log, "section", "turn busy");
  add(turn, "p", "asked", text);
  if (given.length) {
    const shown = add(turn, "div", "given");
    for (const { file, type } of given) showMedia(shown, type === "image" ? "img" : type, file);
  }
  prompt_.value = "";
  setFiles([]);
  running = new AbortController();
  setBusy(true);
  try {
    showFacts(turn, await MAKE[kind](turn, text, given, running.signal));
  } catch (error) {
    const stopped = error.name === "AbortError";
    const lost = error instanceof TypeError;
    const message = stopped ? "Stopped." : lost ? "The connection was lost." : error.message;
    add(turn, "p", stopped ? "facts" : "wrong", message).setAttribute("role", stopped ? "status" : "alert");
    // Nothing that was written is lost.
    if (!stopped && !prompt_.value) {
      prompt_.value = text;
      setFiles(given);
    }
  } finally {
    running = null;
    turn.classList.remove("busy");
    setBusy(false);
    showEnd();
    prompt_.focus();
  }
}

function setBusy(busy) {
  find("stop").hidden = !busy;
  find("send").disabled = busy;
}

function setFiles(next) {
  files = next;
  find("files").replaceChildren();
  files.forEach((item, index) => {
    const row = add(find("files"), "li");
    add(row, "span", "", item.file.name);
    const remove = add(row, "button", "", "Remove");
    remove.type = "button";
    remove.onclick = () => setFiles(files.filter((_, other) => other !== index));
  });
}

function attach(list) {
  const taken = model.input_modalities;
  const added = [...list].map((file) => ({ file, type: file.type.split("/")[0] }));
  setFiles([...files, ...added.filter(({ type }) => type !== "text" && taken.includes(type))]);
}

async function record() {
  if (recorder) return recorder.stop();
  try {
    const stream = await navigator.mediaDevices.getUserMedia({ audio: true });
    const pieces = [];
    recorder = new MediaRecorder(stream);
    recorder.ondataavailable = (event) => pieces.push(event.data);
    recorder.onstop = () => {
      stream.getTracks().forEach((track) => track.stop());
      const type = recorder.mimeType.split(";")[0];
      attach([new File(pieces, `recording.${type.split("/")[1]}`, { type })]);
      recorder = null;
      find("record").textContent = "Record";
    };
    recorder.start();
    find("record").textContent = "End recording";
  } catch (error) {
    add(log, "p", "wrong", `No microphone: ${error.message}`).setAttribute("role", "alert");
  }
}

// --- the server

function askForKey() {
  find("set-key").hidden = false;
  if (!find("key-dialog").open) find("key-dialog").showModal();
}

async function begin() {
  try {
    const [served] = (await (await call("/v1/models")).json()).data;
    model = served;
  } catch {
    return; // the header and the dialog for the key have the reason
  }
  const makes = model.modalities, takes = model.input_modalities.filter((type) => type !== "text");
  const hears = !model.input_modalities.includes("text");
  kind = hears ? "transcription" : ["video", "image"].find((type) => makes.includes(type)) ?? (makes.includes("text") ? "chat" : "speech");
  find("model").textContent = document.title = model.id;
  const random = model.random_weights ? " Its weights are random: what it makes has no meaning." : "";
  find("hint").textContent = HINTS[kind] + random;
  find("attach").hidden = !takes.length;
  find("file").accept = takes.map((type) => `${type}/*`).join(",");
  find("record").hidden = !["chat", "transcription"].includes(kind) || !takes.includes("audio") || !navigator.mediaDevices;
  find("speaks").hidden = kind !== "chat" || !makes.includes("audio");
  const fields = find("fields");
  fields.replaceChildren();
  const seed = kind === "transcription" ? [] : [["seed", "Seed", "number"]];
  for (const [name, title, type] of [...FIELDS[kind], ...seed]) {
    const { value, source } = kind === "chat" ? (model.sampling?.[name] ?? {}) : {};
    const input = add(add(fields, "label", "", source ? `${title} (${source})` : title), "input");
    Object.assign(input, { name, type, step: "any" }, source && { defaultValue: value });
  }
  fields.oninput = showTemperature;
  if (makes.includes("audio") && kind !== "video") await showVoices(fields);
}

// A top p alone asks the server for tokens that are drawn: at temperature 1, where nobody names one.
function showTemperature() {
  const { value, source } = model.sampling?.temperature ?? {};
  const topP = find("fields").querySelector("[name=top_p]");
  if (source === "default" && topP) find("fields").querySelector("[name=temperature]").defaultValue = topP.value === "" ? value : 1;
}

async function showVoices(fields) {
  const reply = await call("/v1/audio/voices").then((response) => response.json(), () => null);
  const names = (reply?.voices ?? []).map((voice) => voice.id);
  if (!names.length) return;
  const select = add(add(fields, "label", "", "Voice"), "select");
  select.name = "voice";
  for (const name of ["", ...names]) add(select, "option", "", name || "the model's").value = name;
}

async function watch() {
  const state = find("state");
  try {
    const { status } = await (await fetch("/ready")).json();
    state.textContent = status;
    state.className = status === "ready" ? "" : "wrong";
    const knows = model && (model.sampling || status !== "ready");
    if (!knows && !find("key-dialog").open && find("set-key").hidden) await begin();
  } catch {
    state.textContent = "no connection";
    state.className = "wrong";
  }
}

find("composer").onsubmit = (event) => {
  event.preventDefault();
  send();
};
prompt_.onkeydown = (event) => {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  send();
};
document.onkeydown = (event) => {
  if (event.key === "Escape") running?.abort();
};
find("stop").onclick = () => running?.abort();
find("attach").onclick = () => find("file").click();
find("file").onchange = () => {
  attach(find("file").files);
  find("file").value = "";
};
find("record").onclick = record;
find("set-key").onclick = () => find("key-dialog").showModal();
find("use-key").onsubmit = async (event) => {
  event.preventDefault();
  sessionStorage.setItem("omni-key", find("key").value);
  find("key-dialog").close();
  await begin();
};
find("new").onclick = () => {
  running?.abort();
  history = [];
  log.querySelectorAll(".turn, .wrong").forEach((element) => element.remove());
  find("hint").hidden = false;
  prompt_.focus();
};
watch();
setInterval(watch, READY_EVERY_MS);
prompt_.focus();
