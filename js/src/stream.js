// The completion panel: a prompt, its continuation token by token, and each token's likeliest alternatives. Choosing an
// alternative continues the text from there.

import { Compose, WAIT } from "./compose.js";
import { copyButton, h, newId } from "./dom.js";
import { common, Frame } from "./frame.js";
import { tell } from "./kernel.js";
import { numbers } from "./message.js";
import { settings } from "./settings.js";
import { token, TokenView } from "./tokens.js";

const WORDS = { send: "Continue", stop: "Stop", input: "Prompt" };

export class Stream {
  #model;
  #transport = null;
  #run = null;
  #runs = new Set(); // all that were shown here
  #own = ""; // the run that was begun here last
  #live = false;
  #prompt = "";
  #before = [];
  #unseen = []; // ids of tokens that the text begins with and nobody tells of: another view or page has kept them
  #kept = [];
  #last = null;
  #frame;
  #compose;
  #view = new TokenView((index, alternative) => this.#branch(index, alternative));
  #note = h("span", { class: "nbgen-note" });
  #more = button("More", "Go on where it ended", () => this.#goOn());
  #undo = button("Undo", "Back to the text before", () => this.#back());
  #copy = copyButton("Copy text", () => this.#prompt + this.#view.text);
  #alert = h("div", { class: "nbgen-error", role: "alert", hidden: true });

  #handlers = {
    delta: ({ text, logprobs = [], index = 0 }) => index === 0 && this.#view.add(text, logprobs.map(token)),
    restart: () => this.#view.restart(this.#kept),
    done: (data) => {
      this.#note.textContent = numbers(data);
      this.#last = data.finish_reason?.matched;
      const tokens = data.usage?.completion_tokens ?? this.#view.tokens.length;
      this.#end(data.finish_reason?.type === "abort" ? "Stopped" : `Text ready, ${tokens} tokens`);
    },
    error: ({ error }) => {
      this.#alert.textContent = error.message;
      this.#alert.hidden = false;
      this.#end("Failed");
    },
  };

  constructor(model, name) {
    this.#model = model;
    const send = (text) => text && this.#begin(text);
    this.#compose = new Compose({ send, stop: () => this.#stop(), wait: () => this.#frame.say(WAIT), placeholder: "Text to continue", rows: 2, words: WORDS });
    this.#compose.text = this.#prompt = model.get("prompt");
    const foot = h("div", { class: "nbgen-foot" }, this.#note, this.#more, this.#undo, this.#copy);
    this.#frame = new Frame(model, {
      name,
      label: "Completion",
      key: (event) => this.#key(event),
      sized: true,
      tools: [legend()],
      parts: [
        this.#compose.element,
        settings(model, { prompt: () => this.#compose.text, system: false, say: (words) => this.#frame.say(words) }),
        h("div", { class: "nbgen-log nbgen-completion" }, this.#view.element, this.#alert, foot),
      ],
    });
    this.element = this.#frame.element;
    this.#rest();
  }

  open(transport) {
    this.#transport = transport;
    return this.#look().catch(({ message }) => this.#frame.say(message));
  }

  /** Show a run that was started elsewhere meanwhile, such as in another window. */
  refresh() {
    return this.#look().catch(() => {});
  }

  close() {
    this.#frame.close();
    this.#transport?.close();
  }

  /** Follow a run that was started elsewhere. */
  adopt(begun) {
    if (this.#runs.has(begun.run)) return;
    if (begun.type === "begun") return this.refresh();
    this.#restore(begun);
  }

  receive(event, data) {
    if (event === "started") return this.#started(data);
    if (data.run && (data.run !== this.#run || !this.#live)) return;
    if (!common(this.#frame, event, data, this.#live)) this.#handlers[event]?.(data);
  }

  /** Show the newest text that the server knows, and go on reading it, unless a run has started here meanwhile. */
  async #look() {
    const shown = this.#run;
    const { run } = (await this.#transport.snapshot()) ?? {};
    if (run && shown === this.#run && !this.#runs.has(run.run) && !this.#live) this.#restore(run);
  }

  #begin(prompt) {
    if (this.#live || !this.#transport) return;
    this.#go([], prompt, []);
  }

  /** Continue after the `kept` tokens, which follow the `unseen` ones. */
  #go(kept, prompt = this.#prompt, unseen = this.#unseen) {
    if (this.#live || !prompt) return;
    const { tokens, text } = this.#view;
    if (text || tokens.length) this.#before.push({ prompt: this.#prompt, unseen: this.#unseen, tokens, text, last: this.#last, note: this.#note.textContent });
    this.#own = newId();
    this.#prompt = prompt;
    this.#unseen = unseen;
    this.#kept = [...kept];
    const prefix_ids = [...unseen, ...kept.map(({ id }) => id)];
    const body = { id: this.#own, chat: this.#model.get("chat"), prompt, prefix_ids, params: this.#model.get("params") };
    this.#transport.start({ ...body, ...this.#model.get("beside"), logprobs: this.#model.get("alternatives") });
  }

  /** Continue after all tokens except the one that ended the text. */
  #goOn() {
    const { tokens } = this.#view;
    this.#go(tokens.at(-1)?.id === this.#last ? tokens.slice(0, -1) : tokens);
    this.#compose.input.focus(); // the button is gone
  }

  #branch(index, alternative) {
    const { top, offset } = this.#view.tokens[index];
    this.#go([...this.#view.tokens.slice(0, index), { ...alternative, top, offset }]);
  }

  #back() {
    const before = this.#before.pop();
    if (this.#live || !before) return;
    this.#alert.hidden = true;
    if (this.#compose.text === this.#prompt) this.#compose.text = before.prompt; // else it is a draft
    [this.#prompt, this.#unseen, this.#last] = [before.prompt, before.unseen, before.last];
    this.#view.begin(before.prompt);
    this.#view.add(before.text, before.tokens);
    this.#view.finish();
    this.#note.textContent = before.note;
    this.#rest("Back");
    this.#compose.input.focus();
  }

  #started({ run, prompt, prefix_ids, state }) {
    if (run !== this.#own) [this.#unseen, this.#kept] = [prefix_ids ?? [], []];
    this.#run = run;
    this.#runs.add(run);
    this.#live = true;
    this.#prompt = prompt ?? this.#prompt;
    this.#view.begin(this.#prompt, this.#kept);
    this.#note.textContent = "";
    this.#alert.hidden = true;
    this.#alert.setAttribute("role", state === "error" ? "note" : "alert"); // what was kept is not read out
    this.#frame.busy = this.#compose.busy = true;
    this.#more.hidden = this.#undo.hidden = true;
    this.#frame.say("Sending");
  }

  #restore({ run, prompt, prefix_ids, model, state }) {
    if (this.#compose.text === this.#prompt) this.#compose.text = prompt; // else it is a draft
    this.#started({ run, prompt, prefix_ids, state });
    this.#frame.call(model);
    this.#transport.follow(run, 0);
  }

  async #stop() {
    this.#frame.say("Stopping");
    try {
      await this.#transport.cancel(this.#run);
    } catch (error) {
      this.#frame.say(error.message);
    }
  }

  #key(event) {
    if (event.key === "Escape" && this.#live) this.#stop();
    this.#compose.key(event);
  }

  #end(words) {
    this.#view.finish();
    this.#live = false;
    this.#compose.busy = false;
    this.#rest(words);
    if (this.#run === this.#own) this.#frame.kept();
    tell(this.#model, { type: "ended" });
  }

  #rest(words) {
    this.#frame.rest(words);
    this.#more.hidden = !this.#view.tokens.length;
    this.#copy.hidden = !this.#view.text;
    this.#undo.hidden = !this.#before.length;
  }
}

function button(words, label, click) {
  return h("button", { type: "button", class: "nbgen-small", "aria-label": label, title: label, hidden: true, click }, words);
}

function legend() {
  const steps = [0, 1, 2, 3, 4, 5, 6].map((step) => h("span", { class: `nbgen-token nbgen-p${step}` }, "\u00a0"));
  return h("span", { class: "nbgen-legend", "aria-hidden": "true" }, "likely ", ...steps, " unlikely");
}
