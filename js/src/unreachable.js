// Transport of a panel that may only ask the server directly, on a page that cannot reach the server that the kernel
// uses: every request is refused in words.

const WORDS = 'This page cannot reach the nbgen server. Use transport="auto" to go through the kernel.';

export class Unreachable {
  #listener;

  constructor(listener) {
    this.#listener = listener;
  }

  start({ id: run, messages, prompt }, { version } = {}) {
    this.#listener("started", { run, messages, prompt, version });
    this.follow(run);
  }

  follow(run) {
    this.#listener("error", { run, error: { message: WORDS } });
  }

  cancel = refuse;
  snapshot = refuse;
  model = refuse;
  load = refuse;

  close() {}
}

async function refuse() {
  throw new Error(WORDS);
}
