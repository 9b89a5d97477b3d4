// What the panel does, as a line of Python that does the same.

import { mediaOf, textOf } from "./content.js";

/** The call of `nbgen.generate` for messages (or for a prompt to be continued) and sampling options. */
export function pythonCall({ messages = [], prompt, params }) {
  const told = messages.map(({ role, content }) => ({ role, content: textOf(content) }));
  const images = messages.flatMap(({ content }) => mediaOf(content)).length;
  const asked = prompt ?? (told.length === 1 ? told[0].content : null);
  const first = asked === null ? literal(told, "    ") : literal(asked);
  const options = Object.entries(params)
    .filter(([, value]) => value !== null || prompt !== undefined)
    .map(([name, value]) => `${name}=${literal(value)}`);
  const given = [first, ...(prompt === undefined ? [] : ["complete=True"]), ...(images ? [`images=[...]`] : []), ...options];
  const note = images ? `# images: files, PIL images, arrays or figures, ${images} in this conversation\n` : "";
  return `${note}import nbgen\n\nresult = nbgen.generate(\n${given.map((line) => `    ${line},\n`).join("")})\n`;
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
