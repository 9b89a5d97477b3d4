// One message of the conversation. An answer is painted at most once a frame.

import { Blocks } from "./blocks.js";
import { copyButton, h } from "./dom.js";

const SLOW_MS = 8;

/** What a person wrote: shown as it is. */
export function userMessage(text) {
  return h("article", { class: "nbgen-user", "aria-label": "You" }, h("div", { class: "nbgen-bubble" }, text));
}

export class AnswerMessage {
  text = "";
  tokens = 0;
  #body = h("div", { class: "nbgen-text" });
  #note = h("span", { class: "nbgen-note" });
  #foot = h("div", { class: "nbgen-foot", hidden: true }, this.#note, copyButton("Copy answer", () => this.text));
  #blocks = new Blocks(this.#body);
  #due = false;
  #timer = 0;
  #frame = 0;
  #cost = 0;
  #painted;

  /** `painted(work)` runs the work that changes the page. */
  constructor(painted) {
    this.#painted = painted;
    this.element = h("article", { class: "nbgen-answer nbgen-live", "aria-label": "Answer" }, this.#body, this.#foot);
  }

  add(text, tokens = 0) {
    this.text += text.replace(/\r\n?/g, "\n");
    this.tokens += tokens;
    if (!this.#due) this.#schedule();
  }

  restart() {
    this.text = "";
    this.tokens = 0;
    this.#painted(() => this.#blocks.clear());
  }

  /** The end: numbers below the text. */
  finish(note) {
    this.element.classList.remove("nbgen-live");
    this.#paint((all) => this.#blocks.finish(all));
    this.#painted(() => {
      this.#note.textContent = note;
      this.#foot.hidden = !note;
    });
  }

  /** The end by an error, in words, with a way to try again unless the same could only fail again. */
  fail({ message, code }, retry) {
    this.finish("");
    const button = h("button", { type: "button", class: "nbgen-retry", click: retry }, "Retry");
    const parts = [h("span", {}, message), ...(code === 400 ? [] : [button])];
    this.#painted(() => this.element.append(h("div", { class: "nbgen-error", role: "alert" }, ...parts)));
  }

  /** At the next frame; later where painting is slow, so that the page stays free for two thirds of the time. */
  #schedule() {
    this.#due = true;
    const paint = () => this.#paint((all) => this.#blocks.update(all));
    const wait = this.#cost > SLOW_MS ? 2 * this.#cost : 0;
    this.#timer = setTimeout(() => (this.#frame = requestAnimationFrame(paint)), wait);
  }

  #paint(show) {
    clearTimeout(this.#timer);
    cancelAnimationFrame(this.#frame);
    this.#due = false;
    const start = performance.now();
    this.#painted(() => show(this.text));
    this.#cost = performance.now() - start;
  }
}

/** "42 tokens · 0.03 s to first token · 210 tokens/s · stop". */
export function numbers({ finish_reason, usage, ttft_s, tokens_per_s }) {
  const tokens = usage?.completion_tokens;
  const parts = [
    tokens != null && `${tokens} token${tokens === 1 ? "" : "s"}`,
    ttft_s != null && `${ttft_s.toFixed(2)} s to first token`,
    tokens_per_s != null && `${Math.round(tokens_per_s)} tokens/s`,
    finish_reason?.type === "abort" ? "stopped" : finish_reason?.type,
  ];
  return parts.filter(Boolean).join(" · ");
}
