// The chat panel: a conversation with branches and one input. Handles questions from here and elsewhere, and the change
// to another chat; Answering handles the answers. Uses a transport by its five methods, whichever transport it is.

import { Answering } from "./answering.js";
import { Attachments } from "./attachments.js";
import { Caller } from "./caller.js";
import { Compose, WAIT } from "./compose.js";
import { contentOf, mediaOf, sendable } from "./content.js";
import { Conversation } from "./conversation.js";
import { h, newId } from "./dom.js";
import { Frame } from "./frame.js";
import { tellTurns } from "./kernel.js";
import { Senses } from "./senses.js";
import { LOST } from "./server.js";
import { settings } from "./settings.js";
import { answered, Tree } from "./tree.js";
import { Variables } from "./variables.js";

export class Chat {
  #model;
  #transport = null;
  #opened = null;
  #known = false; // what the server and the notebook have of the chat
  #own = ""; // the run that was begun here last
  #left = null; // the conversation that another one takes the place of
  #frame;
  #compose;
  #files;
  #senses = new Senses(() => this.#files);
  #variables;
  #caller;
  #answering;

  #conversation = new Conversation({
    again: (turn) => this.#again(turn),
    edit: (turn, area) => this.#sendEdited(turn, area),
    step: (turn, by) => this.#frame.say(this.#conversation.step(turn, by)),
    focus: () => this.focus(),
    fresh: () => this.#newChat(),
    retry: (turn) => this.#retry(turn),
    missing: (turn) => (turn === this.#answering.live ? null : this.#caller.missing(turn.run)),
  });

  constructor(model, name) {
    this.#model = model;
    const say = (words) => this.#frame.say(words);
    this.#variables = new Variables(model, say);
    this.#caller = new Caller(model, { say, fail: (words) => this.#answering.uncalled(words) });
    this.#files = new Attachments({ say, done: () => this.focus(), write: (text) => this.#compose.add(text), allowed: (kind) => this.#senses.refusal(kind) });
    this.#compose = new Compose({
      send: (text) => this.#send(text),
      stop: () => this.#answering.stop(),
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
      parts: [this.#compose.element, settings(model, { messages: () => this.#tree.asked, say }), this.#conversation.element, this.#conversation.following.element],
    });
    this.element = this.#frame.element;
    this.#files.receive(this.element);
    this.element.addEventListener("focusin", ({ relatedTarget }) => this.element.contains(relatedTarget) || this.#renew());
    const parts = { frame: this.#frame, compose: this.#compose, conversation: this.#conversation, caller: this.#caller, senses: this.#senses };
    this.#answering = new Answering(model, { ...parts, retry: (turn) => this.#retry(turn) });
    this.#conversation.show();
  }

  /** Show what is known of the chat, and go on reading an answer that is being written. */
  open(transport) {
    return (this.#opened = this.#open(transport));
  }

  async #open(transport) {
    this.#transport = transport;
    this.#senses.open(transport);
    this.#answering.open(transport);
    this.#conversation.empty.open(transport);
    const chat = await transport.snapshot().catch((error) => this.#frame.say(error.message));
    this.#known = true;
    const id = this.#model.get("chat");
    const known = id === this.#left?.chat ? this.#left.tree.list() : this.#frame.notebook.kept(id);
    const tree = Tree.merged(known, chat?.turns ?? []);
    if (tree.size && !this.#tree.size) this.#restore(tree, chat);
    if (tree.size && !chat?.turns?.length) tellTurns(this.#model, "kept", this.#tree.said);
    if (!this.#tree.size) this.#offer(this.#frame.notebook.left);
  }

  /** Add what was said elsewhere meanwhile, such as in another window. A `glance` does nothing while an answer is being written. */
  async refresh(glance = false) {
    await this.#opened;
    if (glance && this.#answering.live) return;
    const { turns = [] } = (await this.#transport.snapshot().catch(() => null)) ?? {};
    const writing = this.#answering.live && !turns.some((turn) => turn.run === this.#answering.live.run && !Tree.unfinished(turn));
    const found = this.#beside(() => this.#tree.grow(turns), writing);
    if (!found.length) return;
    for (const turn of found) if (!Tree.continues(turn) || this.#answering.elsewhere.has(turn.parent)) this.#answering.elsewhere.add(turn);
    this.#conversation.following.during(() => this.#conversation.show());
    const newest = writing ? null : found.find(({ run }) => run && run === turns.at(-1).run);
    if (newest && this.#caller.knows(newest)) this.#caller.call(this.#answering.begin(newest));
    else if (newest && Tree.unfinished(newest)) this.#answering.begin(newest);
    found.filter(Tree.unfinished).forEach((turn) => this.#answering.follow(turn));
  }

  close() {
    this.#files.close();
    this.#caller.done();
    this.#conversation.close();
    this.#frame.close();
    this.#transport?.close();
  }

  get #tree() {
    return this.#conversation.tree;
  }

  /** Text and files that are not sent yet, and the conversation left last, for the view that replaces this one. */
  get draft() {
    return { text: [this.#compose.text, ...this.#conversation.edits].filter(Boolean).join("\n\n"), files: this.#files.given, left: this.#left };
  }

  set draft({ text, files, left }) {
    this.#compose.text = text;
    this.#files.given = files;
    this.#left = left;
    this.#offer(left);
  }

  focus() {
    this.#compose.input.focus();
  }

  /** Show a run that another program started, or that continues the run `after`, once the chat so far is known. */
  adopt(begun) {
    if (!this.#known) return this.#opened.then(() => this.adopt(begun));
    const { run, messages, after } = begun;
    const stale = after && (!this.#tree.answer(after) || this.#caller.stopped(after));
    if (stale || this.#tree.answer(run)) return;
    if (!messages) {
      if (after && this.#answering.live?.run === after) this.#answering.rest();
      return this.refresh();
    }
    this.#started({ run, messages });
    if (after && this.#answering.elsewhere.has(this.#tree.answer(after))) this.#answering.elsewhere.add(this.#tree.answer(run));
    this.#transport.follow(run, 0);
  }

  /** An event of this chat, whichever view or program caused it. */
  receive(event, data) {
    if (event === "started") return this.#known ? this.#started(data) : this.adopt(data);
    if (event === "expanded") return this.#variables.receive(data);
    this.#conversation.empty.hear(data);
    this.#answering.receive(event, data);
  }

  /** Send text to the model; if it has `{{…}}`, only after these are filled in and the user has seen the result. */
  #send(text) {
    const files = this.#files.parts;
    if (this.#files.unfinished) return this.#frame.say(this.#files.unfinished);
    if (!(text.trim() || files.length) || this.#answering.live || !this.#transport) return;
    if (!this.#known) return this.#later(text);
    if (!this.#variables.ready(this.#compose.input)) return;
    const system = this.#model.get("system");
    const before = this.#tree.said.filter(({ role }) => role !== "system");
    this.#run([...(system ? [{ role: "system", content: system }] : []), ...before, { role: "user", content: contentOf(text, files) }]);
    this.#compose.text = "";
    this.#files.clear();
  }

  /** Send this text, unless it is changed meanwhile, once the earlier conversation is known, which is sent along. */
  async #later(text) {
    const chat = this.#model.get("chat");
    this.#frame.say("Looking for what was said before");
    await this.#opened;
    if (this.#compose.text === text && this.#model.get("chat") === chat) this.#send(text);
  }

  /** Send another version of a message. Returns whether it was sent. */
  #sendEdited(turn, area) {
    const content = contentOf(area.value.trim() && area.value, mediaOf(turn.content));
    if (!content.length) this.#frame.say("The message is empty: Cancel brings back what it was");
    else if (this.#free() && this.#variables.ready(area)) return this.#run([...this.#tree.messages(turn.parent), { role: "user", content: sendable(content) }], true);
    return false;
  }

  /** Another model may have been loaded since: show its name, and the buttons for the files that it takes. */
  async #renew() {
    if (!this.#transport || this.#transport.needsKernel) return; // a kernel that is busy would not answer
    const name = await this.#senses.renew();
    if (!this.#answering.live) this.#frame.call(name);
  }

  /** Whether an answer may begin now; says why not. */
  #free() {
    if (this.#answering.live) this.#frame.say("Stop this answer first");
    return !this.#answering.live;
  }

  #run(asked, version) {
    const { tool_choice, ...beside } = this.#model.get("beside") ?? {};
    const choice = tool_choice && asked.at(-1).role !== "tool" ? { tool_choice } : {};
    const body = { id: this.#caller.newId(), chat: this.#model.get("chat"), messages: answered(asked), params: this.#model.get("params") };
    this.#own = body.id;
    this.#transport.start({ ...body, ...beside, ...choice }, { version });
    this.#frame.notebook.keep(body.chat, this.#tree); // the kernel may end before the answer does
    return true;
  }

  #again(turn) {
    if (this.#free()) this.#run(this.#tree.messages(this.#tree.question(turn)));
    this.focus(); // the button is gone with its answer
  }

  #retry(failed) {
    if (this.#answering.live) return;
    const messages = this.#tree.messages(failed.parent);
    if (!failed.content) this.#tree.drop(failed);
    this.#run(messages);
    this.focus();
  }

  #started({ run, messages, version }) {
    const add = () => this.#tree.add(messages, run, version);
    const own = run === this.#own;
    this.#answering.begin(own ? add() : this.#beside(add));
    if (own) this.#conversation.following.toEnd();
    this.#frame.say("Sending");
  }

  /** Run `work`, which adds turns from elsewhere. The branch stays if `still`, or if a question in it is being edited. */
  #beside(work, still = false) {
    const shown = this.#tree.path();
    const added = work();
    const edited = this.#conversation.edited(shown);
    if (still || (edited && !this.#tree.path().includes(edited))) this.#tree.choose(shown.at(-1));
    return added;
  }

  #restore(tree, chat) {
    this.#conversation.tree = tree;
    const last = tree.path().at(-1);
    if (Tree.unfinished(last) && chat?.run?.run !== last.run) last.error = LOST; // what had come is all there is
    this.#conversation.show();
    this.#conversation.following.toEnd();
    if (this.#caller.knows(last)) return this.#caller.call(this.#answering.begin(last));
    if (!Tree.unfinished(last)) return;
    this.#answering.begin(last);
    this.#frame.state(chat.run);
    this.#answering.follow(last);
  }

  #key(event) {
    if (event.key === "Escape" && this.#answering.live) this.#answering.stop();
    const plain = !(event.shiftKey || event.ctrlKey || event.altKey || event.metaKey);
    if (event.key === "ArrowUp" && plain && event.target === this.#compose.input && !this.#compose.text && !this.#answering.live) this.#conversation.editLast(event);
    else this.#compose.key(event);
  }

  #newChat() {
    if (!this.#tree.size) return this.focus();
    if (this.#answering.live) this.#answering.stop();
    this.#left = { chat: this.#model.get("chat"), tree: this.#tree };
    this.#frame.notebook.drop(this.#left.chat);
    this.#turn(newId());
  }

  /** Offer a way back to a conversation, if there is one. */
  #offer(left) {
    if (left) this.#conversation.empty.offer(() => {
      this.#left = left;
      this.#frame.notebook.keep(left.chat, left.tree);
      this.#turn(left.chat);
    });
  }

  #turn(chat) {
    this.focus();
    this.#model.set("chat", chat);
    this.#model.save_changes();
  }
}
