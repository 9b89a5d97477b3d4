// Transport through the kernel, for pages that cannot reach the server. Deltas are numbered: Jupyter may drop messages,
// so missing deltas are requested again, and an end that comes before all deltas is ignored: it comes again after them.
// What was dropped last, such as an end, only silence shows.

import { BUSY_MS, ENDED, LONGEST_MS, QUIET_MS, tell } from "./kernel.js";

/** Jupyter closes the connection to the kernel at 10 MiB. */
const MAX_SENT = 8_000_000;
const TOO_MUCH = "The images and sounds of this conversation are too large for the way through the kernel: at most 8 MB, of which base64 takes a quarter";
const ANSWERS = ["model", "load", "turns"];
const ENDS = ["done", "error"];

export class Comm {
  /** Its requests wait while a cell runs. */
  needsKernel = true;
  #model;
  #chat;
  #listener;
  #have = new Map(); // of the runs that have not ended
  #asked = {};
  #waiting = null;
  #watching = null;
  #quiet = QUIET_MS;
  #receive = (message) => this.#message(message);
  #ended = () => {
    this.#over([...this.#have.keys()]);
    this.#refuse(ENDED);
  };

  constructor(model, chat, listener) {
    this.#model = model;
    this.#chat = chat;
    this.#listener = listener;
    model.on("msg:custom", this.#receive);
    model.on("comm_live_update", this.#ended);
  }

  /** `server` is the index of another server than the kernel's own; `version` is passed to the listener. */
  start(body, { server, version } = {}) {
    this.#have.set(body.id, 0);
    this.#listener("started", { run: body.id, messages: body.messages, prompt: body.prompt, version });
    if (JSON.stringify(body).length > MAX_SENT) return this.#end(body.id, { message: TOO_MUCH, code: 400 });
    if (!this.#send({ type: "start", body, server })) this.#over([body.id]);
  }

  follow(run) {
    this.#have.set(run, 0);
    this.#listener("restart", { run });
    this.#send({ type: "need", run, from: 0 });
  }

  /** Stop a run. Asks for its end, too, which may have been sent already and dropped on the way. */
  cancel(run) {
    if (!this.#send({ type: "cancel", run })) return this.#over([run]);
    this.#send({ type: "need", run, from: this.#have.get(run) ?? 0 });
  }

  snapshot() {
    return this.#ask("chat", { chat: this.#chat });
  }

  model() {
    return this.#ask("model");
  }

  /** The answers that came through the kernel, in the shape of a snapshot's turns. */
  async turns() {
    return (await this.#ask("turns")).turns;
  }

  async load(model) {
    const { error } = await this.#ask("load", { model });
    if (error) throw new Error(error);
  }

  close() {
    clearTimeout(this.#waiting);
    clearTimeout(this.#watching);
    this.#model.off("msg:custom", this.#receive);
    this.#model.off("comm_live_update", this.#ended);
    this.#refuse("The panel has turned to another server");
  }

  /** End these runs by an error, since there is no kernel any more to bring their ends. */
  #over(runs) {
    clearTimeout(this.#waiting);
    for (const run of runs) this.#end(run, { message: ENDED });
    this.#listener("notice", { message: ENDED, alone: true });
  }

  #end(run, error) {
    this.#have.delete(run);
    this.#listener("error", { run, error });
  }

  /** Send a request of this type; resolves to the kernel's answer. Throws if there is no kernel, or none any more. */
  #ask(type, fields = {}) {
    return new Promise((resolve, reject) => {
      (this.#asked[type] ??= []).push({ resolve, reject, fields });
      this.#send({ type, ...fields });
    });
  }

  /** Send a message. Returns whether there is a kernel; if not, refuses all requests. Reports a silent one as busy. */
  #send(message) {
    clearTimeout(this.#waiting);
    this.#waiting = setTimeout(() => this.#listener("busy", {}), BUSY_MS);
    const sent = tell(this.#model, message);
    if (!sent) {
      clearTimeout(this.#waiting);
      this.#listener("notice", { message: ENDED, alone: true });
      this.#refuse(ENDED);
    }
    this.#watch();
    return sent;
  }

  /** Ask once more, after some silence, for all that is still to come, except for a load, which takes its time. */
  #watch() {
    clearTimeout(this.#watching);
    const open = Object.entries(this.#asked).filter(([type, asked]) => asked.length && type !== "load");
    if (!this.#have.size && !open.length) return;
    this.#watching = setTimeout(() => {
      this.#quiet = Math.min(2 * this.#quiet, LONGEST_MS);
      for (const [run, from] of this.#have) tell(this.#model, { type: "need", run, from });
      for (const [type, asked] of open) if (asked.length) tell(this.#model, { type, ...asked.at(-1).fields });
      this.#watch();
    }, this.#quiet);
  }

  /** Reject all requests that are still open. */
  #refuse(words) {
    for (const asked of Object.values(this.#asked)) for (const { reject } of asked.splice(0)) reject(new Error(words));
  }

  #message(message) {
    clearTimeout(this.#waiting);
    if (message.type !== "heard") this.#quiet = QUIET_MS;
    this.#watch();
    if (message.type === "chat" && message.chat === this.#chat) this.#answer(message);
    else if (message.type === "progress") this.#listener("progress", message);
    else if (ANSWERS.includes(message.type)) this.#told(message.type, message);
    else if (message.type === "delta") this.#delta(message);
    else if (message.type === "event" && this.#whole(message)) this.#listener(message.event, message.data);
  }

  #answer({ snapshot, error }) {
    if (error) this.#listener("notice", { message: error });
    this.#told("chat", snapshot ?? null);
  }

  /** Resolve all open requests of this type. */
  #told(type, answer) {
    for (const { resolve } of this.#asked[type]?.splice(0) ?? []) resolve(answer);
  }

  #delta({ run, from, to, ...said }) {
    const have = this.#have.get(run);
    if (have === undefined || to <= have) return;
    if (from !== have) return this.#send({ type: "need", run, from: have });
    this.#have.set(run, to);
    this.#listener("delta", { run, ...said });
  }

  /** Whether all text before this event has come. If not, requests the rest, after which the event comes again. */
  #whole({ event, data: { run }, to }) {
    const have = this.#have.get(run);
    if (have === undefined) return false;
    if (to <= have && ENDS.includes(event)) this.#have.delete(run);
    if (to <= have) return true;
    this.#send({ type: "need", run, from: have });
    return false;
  }
}
