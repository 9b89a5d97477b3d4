// The way to the server that the kernel uses, a transport itself: where the kernel turns to another server, a panel goes
// on by another transport, and what was begun before is followed and stopped on the former one.

export class Way {
  #make;
  #open = new Map();
  #now;
  #runs = new Map();
  #closed = false;

  /** `make(direct)` makes the transport of a page that reaches the server as `direct` says, or through the kernel. */
  constructor(make, direct) {
    this.#make = make;
    this.take(direct);
  }

  /** From now on by this transport. A former one is closed unless it brings a run; one that is still open is used again. */
  take(direct) {
    if (this.#closed) return;
    const kind = Boolean(direct);
    if (!this.#open.has(kind)) this.#open.set(kind, this.#make(direct));
    this.#now = this.#open.get(kind);
    this.#close();
  }

  /** Hear what a panel hears. */
  hear(event, { run }) {
    if (event !== "done" && event !== "error") return;
    this.#runs.delete(run);
    this.#close();
  }

  get needsKernel() {
    return this.#now.needsKernel;
  }

  start(body, beside) {
    this.#runs.set(body.id, this.#now);
    this.#now.start(body, beside);
  }

  follow(run, seq) {
    this.#of(run).follow(run, seq);
  }

  cancel(run) {
    return this.#of(run).cancel(run);
  }

  snapshot() {
    return this.#ask((transport) => transport.snapshot());
  }

  model() {
    return this.#ask((transport) => transport.model());
  }

  load(model) {
    return this.#now.load(model);
  }

  close() {
    this.#closed = true;
    for (const transport of this.#open.values()) transport.close();
  }

  /** What is asked of a transport that is left before it answers is asked of the next. */
  async #ask(question) {
    const asked = this.#now;
    try {
      return await question(asked);
    } catch (error) {
      if (this.#closed) return new Promise(() => {}); // a panel that is gone does not go on
      if (asked === this.#now) throw error;
      return this.#ask(question);
    }
  }

  /** The transport by which a run came. */
  #of(run) {
    if (!this.#runs.has(run)) this.#runs.set(run, this.#now);
    return this.#runs.get(run);
  }

  /** Close the transports that nothing comes by any more. */
  #close() {
    const used = new Set([this.#now, ...this.#runs.values()]);
    for (const [kind, transport] of this.#open) {
      if (used.has(transport)) continue;
      this.#open.delete(kind);
      transport.close();
    }
  }
}
