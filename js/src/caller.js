// Functions that an answer calls: the kernel calls them, once, however many panels ask it to. A panel first asks if the
// kernel listens, as it may be busy: so no function is called after somebody has stopped waiting.

import { newId } from "./dom.js";
import { ENDED, LONGEST_MS, QUIET_MS, tell } from "./kernel.js";
import { NO_RESULT } from "./tree.js";

export class Caller {
  #model;
  #say;
  #fail;
  #run = null;
  #names = "";
  #timer = 0;
  #stopped = new Set();
  #begun = new Set();

  /** `fail(words)` is called with the reason if no function is called. */
  constructor(model, { say, fail }) {
    this.#model = model;
    this.#say = say;
    this.#fail = fail;
    model.on?.("msg:custom", (message) => this.#hear(message));
    model.on?.("comm_live_update", () => this.#over(ENDED));
  }

  /** An id for a run whose calls this kernel makes. */
  newId() {
    return [this.#model.get("owner"), newId()].filter(Boolean).join("-");
  }

  /** Whether the panel is waiting for the kernel to make calls. */
  get waiting() {
    return this.#run !== null;
  }

  /** Whether this answer has calls, and this kernel has made them or will make them. */
  knows({ run, tool_calls, finish_reason }) {
    return Boolean(tool_calls && this.#owns(run) && !this.stopped(run) && finish_reason && finish_reason.type !== "abort");
  }

  /** Have the kernel make the calls of this answer, or report on them if it has; it then starts the next run. */
  call({ run, tool_calls }) {
    this.#run = run;
    this.#names = [...new Set(tool_calls.map((call) => call.function.name))].join(", ");
    if (!this.#owns(run)) return this.#over(`Nobody here can call ${this.#names}.`);
    this.#say(`Waiting for the kernel to call ${this.#names}`);
    this.#ask(run, QUIET_MS);
  }

  /** The wait is over, as the model goes on, or nobody looks any more. */
  done() {
    clearTimeout(this.#timer);
    this.#run = null;
  }

  stop() {
    this.#stopped.add(this.#run);
    tell(this.#model, { type: "cancel", run: this.#run });
    this.#over("Stopped");
  }

  /** Whether somebody here has stopped waiting for the calls of this run. */
  stopped(run) {
    return this.#stopped.has(run);
  }

  /** What to show as results of this run's calls if nobody will make them, see `Calls.results`. */
  missing(run) {
    return this.#begun.has(run) ? NO_RESULT : undefined;
  }

  #owns(run) {
    const owner = this.#model.get("owner");
    return Boolean(owner && run?.startsWith(`${owner}-`));
  }

  /** Ask whether the kernel listens, again and again: Jupyter may drop what it says, also that the next run has started. */
  #ask(run, pause) {
    clearTimeout(this.#timer);
    if (!tell(this.#model, { type: "hear", run })) return this.#over(ENDED);
    this.#timer = setTimeout(() => this.#ask(run, Math.min(2 * pause, LONGEST_MS)), pause);
  }

  #hear({ type, run, message, begun }) {
    if (run !== this.#run || run === null) return;
    if (begun) this.#begun.add(run);
    if (type === "heard") tell(this.#model, { type: "call", run });
    else if (type === "calling") this.#say(`Calling ${this.#names}`);
    else if (type === "uncalled") this.#over(message);
  }

  #over(words) {
    if (!this.waiting) return;
    this.done();
    this.#fail(words);
  }
}
