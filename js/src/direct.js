// Transport that asks the Jupyter server directly, so it works while the kernel is busy.

import { pageBus } from "./bus.js";
import { events } from "./sse.js";

export class Direct {
  #server;
  #bus;
  #chat;
  #silence;
  #listener;
  #untold = new Set();

  /** `awake`: answers are followed also while the page is hidden. `begun(run)` is called once the server has a run. */
  constructor(server, chat, listener, { awake = false, begun = () => {} } = {}) {
    this.#server = server;
    this.#listener = (event, data) => {
      listener(event, data);
      if (event === "run" && this.#untold.delete(data.run)) begun(data.run);
    };
    this.#bus = pageBus(server);
    this.#chat = chat;
    this.#silence = this.#bus.listen(chat, this.#listener, awake);
  }

  start(body, { version } = {}) {
    this.#untold.add(body.id);
    this.#bus.start({ ...body, attached: false }, { version });
  }

  follow(run, seq) {
    this.#bus.follow(this.#chat, run, seq);
  }

  /** Stop a run. One that the server does not know is still on its way there, so it is tried again. */
  async cancel(run, tries = 20) {
    try {
      await this.#server.json(`runs/${inPath(run)}/cancel`, { body: {} });
    } catch (error) {
      if (error.status !== 404 || tries === 0) throw error;
      await new Promise((resolve) => setTimeout(resolve, 100));
      await this.cancel(run, tries - 1);
    }
  }

  /** What the server knows of the chat. */
  snapshot() {
    return this.#server.json(`chats/${inPath(this.#chat)}`);
  }

  /** The model and its state. */
  model() {
    return this.#server.json("model");
  }

  /** Have the server load a model. The present one takes back its released memory. Throws if it cannot be loaded. */
  async load(model) {
    const reading = new AbortController();
    try {
      const { body } = await this.#server.request("model/load", { body: model ? { model } : {}, signal: reading.signal });
      for await (const { event, data } of events(body, () => reading.abort())) {
        if (event === "error") throw new Error(JSON.parse(data).error.message);
        if (event === "progress") this.#listener("progress", JSON.parse(data));
      }
    } catch (error) {
      if (!reading.signal.aborted) throw error;
      await this.load(model); // which joins what goes on
    }
  }

  close() {
    this.#silence();
  }
}

/** An id as a part of a path, with its colons unescaped. */
function inPath(id) {
  return encodeURIComponent(id).replaceAll("%3A", ":");
}
