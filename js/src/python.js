// The panel's request as a line of Python that does the same.

import { mediaOf, textOf } from "./content.js";

/** The arguments that take files. */
const TAKEN = {
  images: { types: ["image_url"], words: "files, PIL images, arrays or figures" },
  videos: { types: ["video_url"], words: "files, arrays, lists of images, or pairs of these and their number in a second" },
  audio: { types: ["audio_url", "input_audio"], words: "files, or pairs of samples and their rate" },
};

/** The call of `nbgen.generate` for messages (or for a prompt to be continued), with `params` and options `beside`. */
export function pythonCall({ messages = [], prompt, params, beside = {} }) {
  const told = messages.map(({ content, ...turn }) => ({ ...turn, content: textOf(content) }));
  const media = messages.flatMap(({ content }) => mediaOf(content));
  const given = Object.entries(TAKEN).map(([name, { types, words }]) => ({ name, words, count: media.filter(({ type }) => types.includes(type)).length }));
  const files = given.filter(({ count }) => count);
  const asked = prompt ?? (told.length === 1 ? told[0].content : null);
  const first = asked === null ? literal(told, "    ") : literal(asked);
  const options = Object.entries(params)
    .filter(([, value]) => value !== null || prompt !== undefined)
    .map(([name, value]) => `${name}=${literal(value)}`);
  const { tools, ...others } = beside;
  const called = (tools ?? []).map((tool) => tool.function?.name).join(", ");
  const more = [...(called ? [`tools=[${called}]`] : []), ...Object.entries(others).map(([name, value]) => `${name}=${literal(value)}`)];
  const lines = [first, ...(prompt === undefined ? [] : ["complete=True"]), ...files.map(({ name }) => `${name}=[...]`), ...more, ...options];
  const notes = files.map(({ name, words, count }) => `# ${name}: ${words}, ${count} in this conversation\n`);
  if (called) notes.push("# tools: the functions that the panel was given\n");
  return `${notes.join("")}import nbgen\n\nresult = nbgen.generate(\n${lines.map((line) => `    ${line},\n`).join("")})\n`;
}

/** A JSON value as Python writes it. */
export function literal(value, indent = "") {
  if (value === null || value === undefined) return "None";
  if (value === true) return "True";
  if (value === false) return "False";
  if (Array.isArray(value)) {
    const items = value.map((item) => literal(item));
    return indent && items.length ? `[\n${items.map((item) => `${indent}    ${item},\n`).join("")}${indent}]` : `[${items.join(", ")}]`;
  }
  if (typeof value === "object") {
    return `{${Object.entries(value).map(([key, item]) => `${literal(key)}: ${literal(item)}`).join(", ")}}`;
  }
  return JSON.stringify(value);
}
