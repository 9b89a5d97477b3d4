// The views of a conversation's messages. An answer is painted at most once a frame.

import { Blocks } from "./blocks.js";
import { Calls } from "./calls.js";
import { frameUrls, imageUrl, mediaOf, nameOf, soundUrl, textOf, videoUrl } from "./content.js";
import { composing, copyButton, h } from "./dom.js";
import { player } from "./sound.js";

const SLOW_MS = 8;
const NUMBERS_MS = 250;
/** Browsers take seconds to draw a line of this length if they have to find its direction. */
const LONG = 100_000;

/** Advice if the context has no room for another answer. */
const FEWER = "Choose fewer tokens in Options (Longest answer), or begin a New chat.";
const SHORTER = "Shorten the question, or begin a New chat.";

/** A user's message, shown as it was written, and edited in place. */
export class Question {
  #bubble;
  #pen;
  #foot;
  #area = null;
  #turn;
  #actions;
  #versions;

  constructor(turn, actions) {
    this.#turn = turn;
    this.#actions = actions;
    this.#versions = new Versions(turn, actions);
    const text = textOf(turn.content);
    this.#bubble = h("div", { class: "nbgen-bubble" }, ...media(turn.content), text.length > LONG ? h("div", {}, text) : text);
    this.#pen = h("button", { type: "button", class: "nbgen-quiet", "aria-label": "Edit message", click: () => this.edit() }, "Edit");
    this.#foot = h("div", { class: "nbgen-foot" }, this.#pen, this.#versions.element);
    this.element = h("article", { class: "nbgen-user", "aria-label": "You" }, this.#bubble, this.#foot);
  }

  show(place, count) {
    this.#versions.show(place, count);
  }

  /** The text in the editor; null while the message is not being edited. */
  get written() {
    return this.#area && this.#area.value;
  }

  /** Open the editor, from which the text is sent as another version. */
  edit() {
    if (this.#area) return this.#area.focus();
    const written = textOf(this.#turn.content);
    const grow = () => area.scrollHeight > area.clientHeight && (area.style.height = `${area.scrollHeight + 3}px`); // with its border
    const area = (this.#area = h("textarea", { rows: 2, dir: "auto", "aria-label": "Edited message", input: grow }));
    area.value = written;
    const close = (next) => {
      this.#area = null;
      this.element.replaceChildren(this.#bubble, this.#foot);
      next.focus();
    };
    const leave = () => close(this.#pen);
    const send = () => this.#actions.edit(this.#turn, area) && close(this.#actions);
    area.addEventListener("keydown", (event) => {
      if (composing(event)) return;
      if (event.key === "Escape") event.stopPropagation();
      if (event.key === "Escape") leave();
      if (event.key !== "Enter" || event.shiftKey) return;
      event.preventDefault();
      send();
    });
    const button = (words, click) => h("button", { type: "button", class: "nbgen-small", click }, words);
    const buttons = h("div", { class: "nbgen-foot nbgen-editing" }, button("Cancel", leave), button("Send edited", send));
    this.element.replaceChildren(area, buttons);
    grow();
    area.focus();
  }
}

/** A message's images and frames, small until they are pressed, players for other media, and words for what cannot be shown. */
function media(content) {
  const parts = mediaOf(content).map((part) => ({ part, image: imageUrl(part), sound: soundUrl(part), frames: frameUrls(part), video: videoUrl(part) })); // once, as they are long
  const isVideo = ({ part }) => part.type === "video_url";
  const place = (one, of, word) => {
    const alike = parts.filter(of);
    return `${word} ${alike.indexOf(one) + 1} of ${alike.length}`;
  };
  const shown = parts.map((one) => {
    const { part, image, sound, frames, video } = one;
    if (image) return picture([image], place(one, (other) => other.image, "Image"));
    if (sound) return player(sound, place(one, (other) => other.sound, "Sound"));
    if (frames) return picture(frames, place(one, isVideo, "Frames of video"));
    if (video) return film(video, place(one, isVideo, "Video"));
    return h("span", { class: "nbgen-note" }, `[${nameOf(part)}]`);
  });
  return shown.length ? [h("div", { class: "nbgen-media" }, ...shown)] : [];
}

function film(url, name) {
  return h("video", { controls: true, preload: "metadata", src: url, "aria-label": name, title: name });
}

/** A picture of one image, or of a video's frames, of which the first has the alternative text. */
function picture(urls, alt) {
  const images = urls.map((src, i) => h("img", { src, alt: i ? "" : alt }));
  const button = h("button", { type: "button", class: "nbgen-picture", "aria-expanded": "false", title: "Enlarge" }, ...images);
  button.addEventListener("click", () => button.setAttribute("aria-expanded", String(button.getAttribute("aria-expanded") === "false")));
  return button;
}

/** ‹ 2/3 ›: steps through the versions of a turn. */
class Versions {
  #count = h("span", {});

  constructor(turn, actions) {
    const step = (by, words, sign) =>
      h("button", { type: "button", class: "nbgen-quiet", "aria-label": words, title: words, click: () => actions.step(turn, by) }, sign);
    this.element = h("span", { class: "nbgen-versions", hidden: true }, step(-1, "Previous version", "‹"), this.#count, step(1, "Next version", "›"));
  }

  show(place, count) {
    this.element.hidden = count < 2;
    this.#count.textContent = `${place + 1}/${count}`;
  }
}

/** The model's reasoning before its answer, folded until the reader opens it. */
class Thoughts {
  #text = "";
  #over = false;
  #words = h("summary", {});
  #body = h("div", { class: "nbgen-thoughts-text" });
  element = h("details", { class: "nbgen-thoughts", hidden: true }, this.#words, this.#body);

  add(text, over) {
    this.#text += text;
    this.#over = over;
  }

  clear() {
    this.#text = "";
    this.show();
  }

  show() {
    if (this.element.hidden && !this.#text) return;
    this.element.hidden = !this.#text;
    const words = this.#over ? "Thoughts" : "Thinking…";
    if (this.#words.textContent !== words) this.#words.textContent = words;
    if (this.#body.textContent.length !== this.#text.length) this.#body.textContent = this.#text;
  }
}

export class Answer {
  text = "";
  tokens = 0;
  body = h("div", { class: "nbgen-text" });
  #thoughts = new Thoughts();
  #calls = new Calls();
  #note = h("span", { class: "nbgen-note" });
  #tools;
  #versions;
  #blocks = new Blocks(this.body);
  #due = false;
  #timer = 0;
  #frame = 0;
  #cost = 0;
  #first = 0;
  #noted = 0;
  #before = 0;
  #returned = false;
  #painted;
  #fresh;

  /** `actions.painted(work)` runs work that changes the page; without `actions.again` there is no Regenerate button. */
  constructor(turn, actions) {
    this.#painted = actions.painted;
    this.#fresh = actions.fresh;
    this.#versions = actions.step && new Versions(turn, actions);
    const again = { type: "button", class: "nbgen-quiet", "aria-label": "Regenerate answer", click: () => actions.again(turn) };
    this.#tools = h("span", { class: "nbgen-tools", hidden: true }, ...(actions.again ? [h("button", again, "Regenerate")] : []), copyButton("Copy answer", () => this.text));
    const foot = h("div", { class: "nbgen-foot" }, ...(this.#versions ? [this.#versions.element] : []), this.#note, this.#tools);
    this.element = h("article", { class: "nbgen-answer nbgen-live", "aria-label": "Answer" }, this.#thoughts.element, this.body, this.#calls.element, foot);
  }

  show(place, count) {
    this.#versions?.show(place, count);
  }

  add(text, tokens = 0, reasoning = "") {
    this.text += (this.#returned ? text.replace(/^\n/, "") : text).replace(/\r\n?/g, "\n");
    if (text) this.#returned = text.endsWith("\r"); // whose line feed may be still to come
    this.#thoughts.add(reasoning, Boolean(this.text));
    this.tokens += tokens;
    if (tokens && !this.#first) [this.#first, this.#before] = [performance.now(), this.tokens];
    if (!this.#due) this.#schedule();
  }

  /** Show complete function calls, and the new parts of incomplete ones. */
  call(calls, deltas = []) {
    this.#painted(() => {
      this.#calls.grow(deltas);
      this.#calls.add(calls);
    });
  }

  /** Show the results of the calls, see `Calls.results`. */
  results(texts) {
    this.#calls.results(texts);
  }

  restart() {
    this.text = "";
    this.#returned = false;
    this.tokens = this.#before = this.#first = 0;
    this.#painted(() => {
      this.#thoughts.clear();
      this.#blocks.clear();
      this.#calls.clear();
    });
  }

  /** End the answer and show `note`, its numbers, below the text. */
  finish(note) {
    this.element.classList.remove("nbgen-live");
    this.#thoughts.add("", true);
    this.#paint((all) => {
      this.#thoughts.show();
      this.#blocks.finish(all);
    });
    this.#painted(() => {
      this.#calls.end();
      this.#note.textContent = note;
      this.#tools.hidden = false;
    });
  }

  /** End the answer by an error, with a button to try again unless that must fail again. An error `kept` from before is not read out. */
  fail({ message, code, kept }, retry) {
    this.finish("");
    const button = (words, click) => h("button", { type: "button", class: "nbgen-small", click }, words);
    const full = this.#fresh && /context length/.test(message);
    const words = full ? `${message}. ${/max_new_tokens/.test(message) ? FEWER : SHORTER}` : message;
    const ways = [...(full ? [button("New chat", this.#fresh)] : []), ...(code === 400 || full || !retry ? [] : [button("Retry", retry)])];
    const parts = [h("span", {}, words), ...ways];
    this.#tools.hidden = !this.text;
    this.#painted(() => this.element.append(h("div", { class: "nbgen-error", role: kept ? null : "alert" }, ...parts)));
  }

  /** Paint at the next frame; later if painting is slow, so that the page is free for two thirds of the time. */
  #schedule() {
    this.#due = true;
    const paint = () => {
      this.#paint((all) => {
        this.#thoughts.show();
        this.#blocks.update(all);
      });
      this.#progress();
    };
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

  /** Show the number of tokens and their rate since the first arrival, when many earlier ones may come at once. */
  #progress() {
    const now = performance.now();
    if (now - this.#noted < NUMBERS_MS || !this.tokens) return;
    this.#noted = now;
    const seconds = (now - this.#first) / 1000;
    this.#note.textContent = numbers({
      usage: { completion_tokens: this.tokens },
      tokens_per_s: seconds > 1 ? (this.tokens - this.#before) / seconds : null,
    });
  }
}

/** How an answer ended, unless the model ended it; in the words of Python (nbgen/notebook/result.py). */
const ENDINGS = { stop: "", tool_calls: "", length: "cut off", abort: "stopped" };

/** "42 tokens · 0.03 s to first token · 210 tokens/s · stopped". */
export function numbers({ finish_reason, usage, ttft_s, tokens_per_s }) {
  const tokens = usage?.completion_tokens;
  const parts = [
    tokens != null && `${tokens} token${tokens === 1 ? "" : "s"}`,
    ttft_s != null && `${duration(ttft_s)} to first token`,
    tokens_per_s != null && `${Math.round(tokens_per_s)} tokens/s`,
    ENDINGS[finish_reason?.type] ?? finish_reason?.type,
  ];
  return parts.filter(Boolean).join(" · ");
}

/** Seconds in words; less than a hundredth as milliseconds. */
function duration(seconds) {
  return seconds < 0.01 ? `${Math.max(1, Math.round(1000 * seconds))} ms` : `${seconds.toFixed(2)} s`;
}
