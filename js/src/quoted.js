// A text file as a part of a message: its name, and its content as a code block.

import { hasBraces } from "./variables.js";

const MAX_BYTES = 100_000;

/** Throws RangeError, with words, for a file that is not taken, and TypeError for one that is no text. */
export async function quoted(file, name) {
  if (file.size > MAX_BYTES) throw new RangeError(`is too long for a message: it may have ${MAX_BYTES / 1000} kB`);
  const text = new TextDecoder("utf-8", { fatal: true }).decode(await file.arrayBuffer());
  if (text.includes("\0")) throw new TypeError("bytes");
  const longest = Math.max(2, ...(text.match(/`+/g) ?? []).map(({ length }) => length));
  const fence = "`".repeat(longest + 1);
  const language = /\.(\w+)$/.exec(name)?.[1].toLowerCase() ?? "";
  const whole = `${name}:\n${fence}${language}\n${text.replace(/\r\n?/g, "\n").trimEnd()}\n${fence}`;
  if (hasBraces(whole)) throw new RangeError("has {{…}}, which the kernel would run: paste what you need of it");
  return whole;
}
