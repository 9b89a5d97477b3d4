// A transport to the server that the kernel uses at the time. If the kernel changes to another server, a panel goes on
// by another transport; earlier runs are followed and stopped by the former one.

export class Way {
  #make;
  #open = new Map();
  #now;
  #runs = new Map();
  #closed = false;

  /** `make(direct)` makes a transport: to the server that is `direct`, or through the kernel if that is null. */
  constructor(make, direct) {
    this.#make = make;
    this.take(direct);
  }

  /** Use this transport, or one of its kind that is still open, from now on. A former one closes once it reads no run. */
  take(direct) {
    if (this.#closed) return;
    const kind = Boolean(direct);
    if (!this.#open.has(kind)) this.#open.set(kind, this.#make(direct));
    this.#now = this.#open.get(kind);
    this.#close();
  }

  /** Must get the panel's events: it notices when runs end. */
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

  /** Ask the present transport. If that is replaced before it answers, and fails, ask the next one. */
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

  /** The transport by which a run is read. */
  #of(run) {
    if (!this.#runs.has(run)) this.#runs.set(run, this.#now);
    return this.#runs.get(run);
  }

  /** Close the transports that are neither in use nor reading a run. */
  #close() {
    const used = new Set([this.#now, ...this.#runs.values()]);
    for (const [kind, transport] of this.#open) {
      if (used.has(transport)) continue;
      this.#open.delete(kind);
      transport.close();
    }
  }
}
