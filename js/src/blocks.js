// Markdown that grows: blocks that can no longer change are rendered once; only the open tail is rendered again.

import { grown, lex, nodes } from "./markdown.js";

const PLAIN_ABOVE = 200_000;
/** The beginning of a link definition. The name's length is bounded: else many lines of unclosed brackets would take quadratic time. */
const DEFINITION = /^ {0,3}\[[^\]]{1,999}\]:/m;

export class Blocks {
  #root;
  #settled = 0;
  #tail = [];
  #plain = null;

  constructor(root) {
    this.#root = root;
  }

  /** Show `text`, which continues the text shown before. */
  update(text) {
    if (text.length > PLAIN_ABOVE) return this.#showPlain(text);
    const { done, open, length } = split(text.slice(this.#settled));
    const same = grown(this.#tail, [...done, ...open]) ? 1 : 0;
    if (same && !done.length) return;
    for (const old of this.#tail.slice(same)) old.remove();
    this.#append(done.slice(same));
    this.#settled += length;
    this.#tail = this.#append(open);
  }

  /** Show the whole text once more if it has link definitions: references to a later definition resolve only then. */
  finish(text) {
    if (this.#plain || !DEFINITION.test(text)) return this.update(text);
    this.clear();
    this.#append(lex(text));
  }

  clear() {
    this.#root.replaceChildren();
    this.#settled = 0;
    this.#tail = [];
    this.#plain = null;
  }

  #append(tokens) {
    const before = this.#root.childNodes.length;
    this.#root.append(...nodes(tokens));
    return [...this.#root.childNodes].slice(before);
  }

  #showPlain(text) {
    if (!this.#plain) {
      this.clear();
      this.#plain = document.createTextNode("");
      const pre = document.createElement("pre");
      pre.append(this.#plain);
      this.#root.append(pre);
    }
    this.#plain.appendData(text.slice(this.#plain.length));
  }
}

/** The tokens that later text cannot change (`done`), those that it can (`open`), and the characters in the former. */
export function split(text) {
  const tokens = lex(text);
  let last = tokens.length - 1;
  while (last > 0 && tokens[last].type === "space") last -= 1;
  const done = tokens.slice(0, Math.max(last, 0));
  return { done, open: tokens.slice(done.length), length: done.reduce((sum, token) => sum + token.raw.length, 0) };
}
