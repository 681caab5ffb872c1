// The loop of every JavaScript client's script, as checks.py is of every Python client's.
import { readFileSync } from "node:fs";
import { basename } from "node:path";

export const [KIND, URL, MODEL, IMAGE, SOUND] = process.argv.slice(2);
export const BASE_URL = `${URL}/v1`;
export const KEY = "none";
export const QUESTION = "What is the capital of France?";
export const MESSAGES = [{ role: "user", content: QUESTION }];
// Bounded, because weights that say nothing would otherwise never come to the end of a text.
export const WEATHER = {
  type: "object",
  properties: { city: { type: "string", enum: ["Rome", "Oslo"] }, days: { type: "integer", enum: [1, 2] } },
  required: ["city", "days"],
  additionalProperties: false,
};
export const DESCRIPTION = "The weather of a city.";
export const TOOL = { type: "function", function: { name: "get_weather", description: DESCRIPTION, parameters: WEATHER } };
export const image = () => readFileSync(IMAGE);
export const sound = () => readFileSync(SOUND);

const checks = [];

export function check(feature, kinds, run) {
  checks.push([feature, kinds, run]);
}

export function assert(truth, message = "not as expected") {
  if (!truth) throw new Error(message);
}

export function fits(found) {
  const { city, days } = typeof found === "string" ? JSON.parse(found) : found;
  return ["Rome", "Oslo"].includes(city) && [1, 2].includes(days);
}

export const isMp3 = (data) => data.subarray(0, 3).toString() === "ID3" || (data[0] === 0xff && (data[1] & 0xe0) === 0xe0);

export async function main() {
  const client = basename(process.argv[1], ".mjs");
  for (const [feature, kinds, run] of checks) {
    if (!kinds.split(" ").includes(KIND)) continue;
    let line;
    try {
      line = { ok: true, detail: String((await run()) ?? "") };
    } catch (error) {
      line = { ok: false, detail: `${error.name}: ${error.message}` };
    }
    line.detail = line.detail.slice(0, 400);
    process.stdout.write(JSON.stringify({ client, feature, ...line }) + "\n");
  }
}
