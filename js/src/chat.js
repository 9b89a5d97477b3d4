// The chat panel: a conversation with branches and one input. Knows a transport by its five methods, not which.

import { Attachments } from "./attachments.js";
import { Caller } from "./caller.js";
import { gain } from "./calls.js";
import { Compose, WAIT } from "./compose.js";
import { contentOf, mediaOf, sendable } from "./content.js";
import { h, newId } from "./dom.js";
import { Empty } from "./empty.js";
import { WayBack } from "./following.js";
import { common, Frame } from "./frame.js";
import { tellTurns } from "./kernel.js";
import { Answer, numbers, Question } from "./message.js";
import { Senses } from "./senses.js";
import { LOST } from "./server.js";
import { settings } from "./settings.js";
import { answered, Tree } from "./tree.js";
import { Variables } from "./variables.js";

export class Chat {
  #model;
  #transport = null;
  #tree = new Tree();
  #views = new Map();
  #live = null;
  #unheard = null; // the run that is to stop once the server is there again
  #frame;
  #log = h("div", { class: "nbgen-log", role: "log", "aria-label": "Conversation", "aria-live": "off", tabindex: 0 });
  #following = new WayBack(this.#log);
  #empty = new Empty();
  #compose;
  #files;
  #senses = new Senses(() => this.#files);
  #variables;
  #caller;

  #actions = {
    again: (turn) => this.#again(turn),
    edit: (turn, area) => this.#sendEdited(turn, area),
    step: (turn, by) => this.#step(turn, by),
    focus: () => this.focus(),
    fresh: () => this.#newChat(),
    painted: (work) => this.#following.during(work),
  };

  #handlers = {
    delta: ({ text, tokens, reasoning = "", index = 0, tool_calls = [] }, turn) => {
      if (index !== 0) return;
      const calls = gain(turn, { text, reasoning, tool_calls });
      this.#view(turn).add(text, tokens, reasoning);
      if (calls.length) this.#view(turn).call(calls);
    },
    restart: (_, turn) => {
      turn.content = turn.reasoning = "";
      delete turn.tool_calls;
      this.#view(turn).restart();
    },
    done: (data, turn) => {
      const { finish_reason, usage, ttft_s, tokens_per_s } = data;
      Object.assign(turn, { finish_reason, usage, ttft_s, tokens_per_s });
      this.#view(turn).finish(numbers(data));
      if (turn === this.#live && turn.tool_calls && finish_reason?.type !== "abort") {
        this.#keep();
        return this.#caller.call(turn);
      }
      const tokens = usage?.completion_tokens ?? this.#view(turn).tokens;
      this.#end(turn, finish_reason?.type === "abort" ? "Stopped" : `Answer ready, ${tokens} tokens`);
    },
    error: ({ error }, turn) => {
      turn.error = error.message;
      this.#view(turn).fail(error, () => this.#retry(turn));
      this.#end(turn, "Failed");
    },
  };

  constructor(model, name) {
    this.#model = model;
    const say = (words) => this.#frame.say(words);
    this.#variables = new Variables(model, say);
    this.#caller = new Caller(model, { say, fail: (words) => this.#uncalled(words) });
    this.#files = new Attachments({ say, done: () => this.focus(), allowed: (kind) => this.#senses.refusal(kind) });
    this.#compose = new Compose({
      send: (text) => this.#send(text),
      stop: () => this.#stop(),
      wait: () => say(WAIT),
      placeholder: model.get("placeholder"),
      files: this.#files,
    });
    this.#frame = new Frame(model, {
      name,
      label: "Chat",
      key: (event) => this.#key(event),
      sized: true,
      tools: [h("button", { type: "button", class: "nbgen-quiet", click: () => this.#newChat() }, "New chat")],
      parts: [this.#compose.element, settings(model, { messages: () => this.#asked(), say }), this.#log, this.#following.element],
    });
    this.element = this.#frame.element;
    this.#files.receive(this.element);
    this.#show();
  }

  /** Show what is known of the chat, and go on reading an answer that is being written. */
  async open(transport) {
    this.#transport = transport;
    this.#senses.open(transport);
    this.#empty.open(transport);
    const chat = await transport.snapshot().catch((error) => this.#frame.say(error.message));
    const tree = Tree.merged(this.#frame.notebook.kept(this.#model.get("chat")), chat?.turns ?? []);
    if (tree.size && !this.#tree.size) this.#restore(tree, chat);
    if (tree.size && !chat?.turns?.length) tellTurns(this.#model, "kept", this.#messages);
  }

  /** Show what was said meanwhile elsewhere, as in another tab. */
  async refresh() {
    const chat = !this.#live && (await this.#transport.snapshot().catch(() => null));
    const tree = Tree.merged(this.#tree.list(), chat?.turns ?? [], this.#tree.dropped);
    if (!this.#live && tree.size > this.#tree.size) this.#restore(tree, chat);
  }

  close() {
    this.#files.close();
    this.#frame.close();
    this.#transport?.close();
  }

  /** What is written and not sent, for the view that takes this one's place. */
  get draft() {
    return { text: this.#compose.text, files: this.#files.given };
  }

  set draft({ text, files }) {
    this.#compose.text = text;
    this.#files.given = files;
  }

  focus() {
    this.#compose.input.focus();
  }

  /** Show a run that some other program started, or one that goes on `after` another. */
  adopt({ run, messages, after }) {
    const stale = after && (!this.#tree.answer(after) || this.#caller.stopped(after));
    if (stale || this.#tree.answer(run)) return;
    if (!messages) {
      if (after && this.#live?.run === after) this.#rest();
      return this.refresh();
    }
    this.#started({ run, messages });
    this.#transport.follow(run, 0);
  }

  /** An event of this chat, whichever view or program caused it. */
  receive(event, data) {
    if (event === "started") return this.#started(data);
    if (event === "expanded") return this.#variables.receive(data);
    this.#empty.hear(data);
    const turn = this.#tree.answer(data.run);
    if (data.run && (!turn || !Tree.unfinished(turn))) return;
    if (!common(this.#frame, event, data, this.#live)) this.#handlers[event]?.(data, turn);
    else if (event === "online" && this.#live?.run === this.#unheard) this.#stop();
  }

  /** Text goes to the model once its `{{…}}` have been filled in and seen. */
  #send(text) {
    const files = this.#files.parts;
    if (this.#files.unfinished) return this.#frame.say(this.#files.unfinished);
    if (!(text.trim() || files.length) || this.#live || !this.#transport) return;
    if (!this.#variables.ready(this.#compose.input)) return;
    const system = this.#model.get("system");
    const before = this.#messages.filter(({ role }) => role !== "system");
    this.#run([...(system ? [{ role: "system", content: system }] : []), ...before, { role: "user", content: contentOf(text, files) }]);
    this.#compose.text = "";
    this.#files.clear();
  }

  /** Another version of a message; whether it was sent. */
  #sendEdited(turn, area) {
    const content = contentOf(area.value.trim() && area.value, mediaOf(turn.content));
    if (!content.length) this.#frame.say("The message is empty: Cancel brings back what it was");
    else if (this.#free() && this.#variables.ready(area)) return this.#run([...this.#tree.messages(turn.parent), { role: "user", content: sendable(content) }], true);
    return false;
  }

  /** Whether an answer may begin now; says why not. */
  #free() {
    if (this.#live) this.#frame.say("Stop this answer first");
    return !this.#live;
  }

  #run(asked, version) {
    const { tool_choice, ...beside } = this.#model.get("beside") ?? {};
    const choice = tool_choice && asked.at(-1).role !== "tool" ? { tool_choice } : {};
    const body = { id: this.#caller.newId(), chat: this.#model.get("chat"), messages: answered(asked), params: this.#model.get("params") };
    this.#transport.start({ ...body, ...beside, ...choice }, { version });
    return true;
  }

  #again(turn) {
    if (this.#free()) this.#run(this.#tree.messages(this.#tree.question(turn)));
    this.focus(); // the button is gone with its answer
  }

  #retry(failed) {
    if (this.#live) return;
    const messages = this.#tree.messages(failed.parent);
    if (!failed.content) this.#tree.drop(failed);
    this.#run(messages);
    this.focus();
  }

  #started({ run, messages, version }) {
    this.#begin(this.#tree.add(messages, run, version));
    this.#frame.say("Sending");
  }

  #begin(turn) {
    this.#caller.done();
    this.#live = turn;
    this.#frame.busy = this.#compose.busy = true;
    this.#show();
    this.#following.toEnd();
    return turn;
  }

  #restore(tree, chat) {
    this.#tree = tree;
    this.#show();
    this.#following.toEnd();
    const last = tree.path().at(-1);
    if (this.#caller.knows(last)) return this.#caller.call(this.#begin(last));
    if (!Tree.unfinished(last)) return;
    if (chat?.run?.run !== last.run) return this.#lost(last);
    this.#begin(last);
    this.#frame.state(chat.run);
    this.#transport.follow(last.run, chat.run.seq);
  }

  /** The server has forgotten the run: what had come is all there is. */
  #lost(turn) {
    turn.error = LOST;
    this.#view(turn).fail({ message: turn.error }, () => this.#retry(turn));
  }

  get #messages() {
    return this.#tree.messages(this.#tree.path().at(-1));
  }

  #asked() {
    return this.#messages.slice(0, this.#messages.findLastIndex(({ role }) => role === "user") + 1);
  }

  async #stop() {
    if (this.#caller.waiting) return this.#caller.stop();
    const { run } = this.#live;
    this.#frame.say("Stopping");
    try {
      await this.#transport.cancel(run);
    } catch (error) {
      if (!error.status) this.#unheard = run;
      if (this.#live?.run === run) this.#frame.say(error.message);
    }
  }

  #key(event) {
    if (event.key === "Escape" && this.#live) this.#stop();
    const plain = !(event.shiftKey || event.ctrlKey || event.altKey || event.metaKey);
    if (event.key === "ArrowUp" && plain && event.target === this.#compose.input && !this.#compose.text) this.#editLast(event);
    else this.#compose.key(event);
  }

  #editLast(event) {
    const turn = this.#tree.path().findLast(({ role }) => role === "user");
    if (!turn || this.#live) return;
    event.preventDefault();
    this.#view(turn).edit();
  }

  #step(turn, by) {
    const versions = this.#tree.versions(turn);
    const next = versions[(versions.indexOf(turn) + by + versions.length) % versions.length];
    this.#tree.choose(next);
    this.#show();
    this.#view(next).element.querySelector(`[aria-label="${by < 0 ? "Previous" : "Next"} version"]`)?.focus();
    this.#frame.say(`Version ${versions.indexOf(next) + 1} of ${versions.length}`);
  }

  #newChat() {
    if (this.#live) this.#stop();
    this.#frame.notebook.drop(this.#model.get("chat"));
    this.focus();
    this.#model.set("chat", newId());
    this.#model.save_changes();
  }

  #keep() {
    tellTurns(this.#model, "ended", this.#messages);
    return this.#frame.notebook.keep(this.#model.get("chat"), this.#tree);
  }

  #uncalled(words) {
    const turn = this.#live;
    this.#end(turn, words);
    this.#view(turn).finish([numbers(turn), words].filter(Boolean).join(" · "));
    this.#show();
  }

  #end(turn, words) {
    const lost = this.#keep();
    if (turn !== this.#live) return;
    this.#senses.look();
    this.#rest(lost ? `${words}. ${lost}` : words);
  }

  #rest(words) {
    this.#caller.done();
    this.#live = null;
    this.#compose.busy = false;
    this.#frame.rest(words);
  }

  #view(turn) {
    if (!this.#views.has(turn)) this.#views.set(turn, this.#make(turn));
    return this.#views.get(turn);
  }

  #make(turn) {
    if (turn.role === "user") return new Question(turn, this.#actions);
    const view = new Answer(turn, this.#actions);
    view.known(turn.content, turn.usage?.completion_tokens, turn.reasoning);
    view.call(turn.tool_calls ?? []);
    if (Tree.unfinished(turn)) return view;
    if (turn.error) view.fail({ message: turn.error }, () => this.#retry(turn));
    else view.finish(numbers(turn));
    return view;
  }

  /** The chosen branch, with as little change to the page as possible. */
  #show() {
    const turns = this.#tree.path().filter(({ role }) => role === "user" || role === "assistant");
    for (const turn of turns) {
      const versions = this.#tree.versions(turn);
      this.#view(turn).show(versions.indexOf(turn), versions.length);
      const missing = turn === this.#live ? null : this.#caller.missing(turn.run);
      if (turn.tool_calls) this.#view(turn).results(this.#tree.results(turn).map((text) => text ?? missing));
    }
    const shown = turns.length ? turns.map((turn) => this.#view(turn).element) : [this.#empty.element];
    shown.forEach((element, i) => this.#log.children[i] === element || this.#log.insertBefore(element, this.#log.children[i] ?? null));
    while (this.#log.children.length > shown.length) this.#log.lastChild.remove();
  }
}
