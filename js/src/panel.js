// The chat panel: a log of messages, a status line and one input. Knows a transport by its five methods, not which.

import { h, newId } from "./dom.js";
import { AnswerMessage, numbers, userMessage } from "./message.js";
import { settings } from "./settings.js";

const STATES = { queued: "Queued", loading: "Loading model", running: "Generating" };

export class Panel {
  #model;
  #transport = null;
  #turns = [];
  #live = null;
  #log = h("div", { class: "nbgen-log", role: "log", "aria-label": "Conversation", "aria-live": "off", tabindex: 0 });
  #status = h("span", { class: "nbgen-status", role: "status" });
  #dot = h("span", { class: "nbgen-dot", "aria-hidden": "true" });
  #name = h("span", { class: "nbgen-name" }, "nbgen");
  #input = h("textarea", { rows: 1, "aria-label": "Message", input: () => this.#grow() });
  #button = h("button", { type: "button", class: "nbgen-send", click: () => this.#press() }, "Send");

  #handlers = {
    run: ({ state, model }) => {
      this.#say(STATES[state] ?? this.#status.textContent);
      this.#call(model);
    },
    progress: ({ stage, done, total }) => {
      this.#say(`Loading model${total ? ` ${Math.floor((100 * done) / total)}%` : ""}`, stage);
    },
    delta: ({ text, tokens, index = 0 }) => {
      if (index === 0) this.#live.answer.add(text, tokens);
    },
    restart: () => this.#live.answer.restart(),
    done: (data) => {
      this.#live.answer.finish(numbers(data));
      const tokens = data.usage?.completion_tokens ?? this.#live.answer.tokens;
      this.#end(data.finish_reason?.type === "abort" ? "Stopped" : `Answer ready, ${tokens} tokens`);
    },
    error: ({ error }) => {
      const { answer, messages } = this.#live;
      answer.fail(error, () => this.#live || this.#run(messages));
      this.#end("Failed");
    },
  };

  constructor(model, name) {
    this.#model = model;
    this.#call(name);
    this.#input.placeholder = model.get("placeholder");
    const fresh = h("button", { type: "button", class: "nbgen-quiet", click: () => this.#newChat() }, "New chat");
    this.element = h(
      "div",
      { class: "nbgen", "data-lm-suppress-shortcuts": "true", keydown: (event) => this.#key(event) },
      h("header", { class: "nbgen-head" }, this.#dot, this.#name, this.#status, fresh),
      this.#log,
      h("div", { class: "nbgen-compose" }, this.#input, this.#button),
      settings(model),
    );
    this.element.style.height = `${model.get("height")}px`;
    this.#showEmpty();
  }

  /** Show what the server knows of the chat, and go on reading an answer that is being written. */
  async open(transport) {
    this.#transport = transport;
    try {
      const chat = await transport.snapshot();
      if (chat?.run && !this.#turns.length) this.#restore(chat);
    } catch (error) {
      this.#say(error.message);
    }
  }

  close() {
    this.#transport?.close();
  }

  #send(text) {
    if (!text.trim() || this.#live || !this.#transport) return;
    const system = this.#model.get("system");
    const messages = [...(system ? [{ role: "system", content: system }] : []), ...this.#answered(), { role: "user", content: text }];
    this.#run(messages);
  }

  /** Show a run that some other program started. */
  adopt({ run, messages }) {
    if (this.#turns.some((turn) => turn.run === run)) return;
    this.#started({ run, messages });
    this.#transport.follow(run, 0);
  }

  /** An event of this chat, whichever view or program caused it. */
  receive(event, data) {
    if (event === "started") return this.#started(data);
    if (event === "offline") return this.#say("Reconnecting");
    if (event === "online") return this.#say(this.#live ? STATES.running : "");
    if (event === "notice") return this.#say(data.message);
    if (event === "busy") return this.#say("The kernel is busy; interrupt it (■) to be heard now");
    if (!this.#live || data.run !== this.#live.run) return;
    this.#handlers[event]?.(data);
  }

  #run(messages) {
    const body = { id: newId(), chat: this.#model.get("chat"), messages, params: this.#model.get("params") };
    this.#transport.start(body);
  }

  #started({ run, messages }) {
    const question = messages.at(-1).content;
    const again = this.#turns.at(-1);
    if (again?.question === question && again.answer.element.querySelector("[role=alert]")) this.#drop(this.#turns.pop());
    this.#turn(run, question, messages);
    this.#busy(true);
    this.#say("Sending");
  }

  #turn(run, question, messages) {
    if (!this.#turns.length) this.#log.replaceChildren();
    const asked = userMessage(question);
    const answer = new AnswerMessage((work) => this.#following(work));
    const turn = { run, question, messages, asked, answer };
    this.#turns.push(turn);
    this.#log.append(asked, answer.element);
    this.#log.scrollTop = this.#log.scrollHeight;
    this.#live = turn;
    return turn;
  }

  #drop({ asked, answer }) {
    asked.remove();
    answer.element.remove();
  }

  #restore({ run, messages }) {
    const turns = messages.filter((message) => message.role !== "system");
    const unanswered = turns.at(-1)?.role === "user";
    if (unanswered) turns.push({ role: "assistant", content: "" });
    for (let i = 0; i + 1 < turns.length; i += 2) {
      const last = i + 2 >= turns.length;
      const turn = this.#turn(last ? run.run : null, turns[i].content, unanswered ? messages : messages.slice(0, -1));
      turn.answer.add(last ? run.text : turns[i + 1].content);
      if (!last) turn.answer.finish("");
    }
    if (!this.#live) return;
    this.#call(run.model);
    if (run.state === "done" || run.state === "error") {
      this.receive(run.state, run);
      return this.#say("");
    }
    this.#busy(true);
    this.#say(STATES[run.state]);
    this.#transport.follow(run.run, run.seq);
  }

  /** Turns as the model is to see them; a question that got no answer is left out. */
  #answered() {
    return this.#turns
      .filter(({ answer }) => answer.text)
      .flatMap(({ question, answer }) => [
        { role: "user", content: question },
        { role: "assistant", content: answer.text },
      ]);
  }

  #press() {
    if (this.#live) return this.#stop();
    const text = this.#input.value;
    this.#send(text);
    if (!this.#live) return;
    this.#input.value = "";
    this.#grow();
  }

  async #stop() {
    this.#say("Stopping");
    try {
      await this.#transport.cancel(this.#live.run);
    } catch (error) {
      this.#say(error.message);
    }
  }

  #key(event) {
    event.stopPropagation();
    if (event.key === "Escape" && this.#live) this.#stop();
    if (event.key !== "Enter" || event.shiftKey || event.isComposing || event.target !== this.#input) return;
    event.preventDefault();
    if (!this.#live) this.#press();
  }

  #newChat() {
    if (this.#live) this.#stop();
    this.#model.set("chat", newId());
    this.#model.save_changes();
    this.#input.focus();
  }

  #end(words) {
    this.#live = null;
    this.#busy(false);
    this.#say(words);
  }

  #busy(busy) {
    this.#button.textContent = busy ? "Stop" : "Send";
    this.element.classList.toggle("nbgen-busy", busy);
  }

  /** The model's name without the folders or the owner before it. */
  #call(model) {
    if (!model) return;
    this.#name.textContent = model.split(/[\\/]/).at(-1);
    this.#name.title = model;
  }

  #say(words = "", title = "") {
    if (this.#status.textContent !== words) this.#status.textContent = words;
    this.#status.title = title;
  }

  #grow() {
    this.#input.style.height = "auto";
    this.#input.style.height = `${Math.min(this.#input.scrollHeight, 160)}px`;
  }

  #showEmpty() {
    this.#log.append(h("p", { class: "nbgen-empty" }, "Ask something. Answers stream in here, also while the kernel is busy."));
  }

  /** Do `work`, and keep the end in sight of a reader who is there. */
  #following(work) {
    const { scrollHeight, scrollTop, clientHeight } = this.#log;
    const atEnd = scrollHeight - scrollTop - clientHeight < 40;
    work();
    if (atEnd) this.#log.scrollTop = this.#log.scrollHeight;
  }
}
