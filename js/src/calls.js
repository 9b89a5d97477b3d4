// The calls of an answer, each on a folded line. Their text is a model's or a function's, and is only shown as text.

import { h } from "./dom.js";

const LONGEST = { argument: 40, arguments: 90, result: 120 };
const NOT_CALLED = "not called";

/** A complete call, in the shape that turns have. */
export function asTurn({ id, name, arguments: given }) {
  return { id, type: "function", function: { name, arguments: given } };
}

/** Add new text, reasoning and calls to a turn. Returns the calls. */
export function gain(turn, { text, reasoning, tool_calls }) {
  turn.content += text;
  turn.reasoning = (turn.reasoning ?? "") + reasoning;
  const calls = tool_calls.map(asTurn);
  if (calls.length) turn.tool_calls = [...(turn.tool_calls ?? []), ...calls];
  return calls;
}

export class Calls {
  #lines = [];
  #begun = new Map();
  element = h("div", { hidden: true });

  /** Show the new parts of calls that are not complete yet. */
  grow(deltas) {
    const grown = new Map();
    for (const delta of deltas) {
      if (!this.#begun.has(delta.id)) this.#begun.set(delta.id, this.#line({ ...delta, arguments: "" }));
      grown.set(delta.id, (grown.get(delta.id) ?? "") + delta.arguments);
    }
    for (const [id, more] of grown) this.#begun.get(id).grow(more);
  }

  /** Show complete calls. */
  add(calls) {
    for (const { id, function: call } of calls) {
      const begun = this.#begun.get(id);
      this.#begun.delete(id);
      begun?.set(call.arguments);
      this.#lines.push(begun ?? this.#line(call));
    }
  }

  /** The answer has ended: calls that are still incomplete will not be made. */
  end() {
    for (const line of this.#begun.values()) line.result(undefined);
  }

  #line(call) {
    const line = new Line(call);
    this.element.append(line.element);
    this.element.hidden = false;
    return line;
  }

  clear() {
    this.#lines = [];
    this.#begun.clear();
    this.element.replaceChildren();
    this.element.hidden = true;
  }

  /** Show results in the order of the calls: texts, null if still to come, undefined if nobody makes the call. */
  results(texts) {
    this.#lines.forEach((line, i) => line.result(texts[i]));
  }
}

class Line {
  #name = h("code");
  #words = h("span");
  #body = h("div", { class: "nbgen-call-body" });
  #call;
  #spread;
  #result = null;

  constructor({ name, arguments: given }) {
    this.#call = { name };
    this.element = h("details", { class: "nbgen-call" }, h("summary", {}, this.#name, this.#words), this.#body);
    this.element.addEventListener("toggle", () => this.#open());
    this.set(given);
    this.result(null);
  }

  /** Set the arguments; `inLine` and `spread` format them for the line and for the unfolded view. */
  set(given, inLine = brief, spread = spreadOut) {
    this.#call.arguments = given;
    this.#spread = spread;
    this.#name.textContent = `${this.#call.name}(${inLine(given)})`;
    this.#open();
  }

  /** Add to the arguments. Shown as written, since incomplete JSON cannot be parsed yet. */
  grow(more) {
    this.set(this.#call.arguments + more, asWritten, String);
  }

  result(text) {
    this.#result = text;
    const words = text === null ? "…" : ` → ${text === undefined ? NOT_CALLED : cut(oneLine(text), LONGEST.result)}`;
    if (this.#words.textContent !== words) this.#words.textContent = words;
    this.#open();
  }

  /** Fill the body only while it is unfolded, as its text may be long. What stands there keeps its focus and place. */
  #open() {
    if (!this.element.open) return this.#body.replaceChildren();
    const parts = [["Arguments", this.#spread(this.#call.arguments)]];
    if (typeof this.#result === "string") parts.push(["Result", this.#result]);
    if (this.#body.children.length > 2 * parts.length) this.#body.replaceChildren();
    for (const [i, [title, text]] of parts.entries()) {
      const shown = this.#body.children[2 * i + 1];
      if (!shown) this.#body.append(h("div", {}, title), h("pre", { tabindex: 0, role: "group", "aria-label": title }, text));
      else if (shown.textContent !== text) shown.textContent = text;
    }
  }
}

/** Arguments as `city="Oslo", days=2`; as written if they are no object. */
export function brief(given) {
  const parsed = object(given);
  if (!parsed) return asWritten(given);
  const pairs = Object.entries(parsed).map(([name, value]) => `${name}=${cut(JSON.stringify(value), LONGEST.argument)}`);
  return cut(oneLine(pairs.join(", ")), LONGEST.arguments);
}

function asWritten(given) {
  return cut(oneLine(String(given)), LONGEST.arguments);
}

function spreadOut(given) {
  const parsed = object(given);
  return parsed ? JSON.stringify(parsed, null, 2) : String(given);
}

function object(given) {
  if (typeof given !== "string") return given;
  try {
    const parsed = JSON.parse(given || "{}");
    return parsed && typeof parsed === "object" && !Array.isArray(parsed) ? parsed : null;
  } catch {
    return null;
  }
}

function oneLine(text) {
  return text.slice(0, 1000).replace(/\s+/g, " ").trim();
}

function cut(text, most) {
  const characters = [...text];
  return characters.length > most ? `${characters.slice(0, most - 1).join("")}…` : text;
}
