// Transport that asks the Jupyter server itself: it works while the kernel is busy.

import { pageBus } from "./bus.js";
import { SseDecoder } from "./sse.js";

export class Direct {
  #server;
  #bus;
  #chat;
  #silence;

  constructor(server, chat, listener) {
    this.#server = server;
    this.#bus = pageBus(server);
    this.#chat = chat;
    this.#silence = this.#bus.listen(chat, listener);
  }

  start(body) {
    this.#bus.start({ ...body, attached: false });
  }

  follow(run, seq) {
    this.#bus.follow(this.#chat, run, seq);
  }

  /** Stop a run; one that the server does not know yet is still on its way there. */
  async cancel(run, tries = 20) {
    try {
      await this.#server.json(`runs/${encodeURIComponent(run)}/cancel`, { body: {} });
    } catch (error) {
      if (error.status !== 404 || tries === 0) throw error;
      await new Promise((resolve) => setTimeout(resolve, 100));
      await this.cancel(run, tries - 1);
    }
  }

  /** What the server knows of the chat. */
  snapshot() {
    return this.#server.json(`chats/${encodeURIComponent(this.#chat)}`);
  }

  /** The model and its state. */
  model() {
    return this.#server.json("model");
  }

  /** Have the engine take released memory again. Throws with words why it could not. */
  async resume() {
    const text = await (await this.#server.request("model/load", { body: {} })).text();
    const failed = new SseDecoder().feed(text).find(({ event }) => event === "error");
    if (failed) throw new Error(JSON.parse(failed.data).error.message);
  }

  close() {
    this.#silence();
  }
}
