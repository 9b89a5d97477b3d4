// The way to the server that the kernel uses, a transport itself: where the kernel turns to another server, a panel goes
// on by another transport, and what was begun before is followed and stopped on the former one.

export class Way {
  #now;
  #before = [];
  #runs = new Map();

  constructor(transport) {
    this.#now = transport;
  }

  /** From now on by this transport. */
  take(transport) {
    this.#before.push(this.#now);
    this.#now = transport;
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
    return this.#now.snapshot();
  }

  model() {
    return this.#now.model();
  }

  load(model) {
    return this.#now.load(model);
  }

  close() {
    for (const transport of [...this.#before, this.#now]) transport.close();
  }

  /** The transport by which a run came. */
  #of(run) {
    if (!this.#runs.has(run)) this.#runs.set(run, this.#now);
    return this.#runs.get(run);
  }
}
