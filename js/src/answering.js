// The answer that is being written, from its beginning to its end: its events change its turn and its view, and the
// input waits meanwhile. Uses a transport's `follow` and `cancel`, whichever transport it is.

import { gain } from "./calls.js";
import { common } from "./frame.js";
import { tellTurns } from "./kernel.js";
import { numbers } from "./message.js";
import { Tree } from "./tree.js";

export class Answering {
  /** The turn of the answer, or null. */
  live = null;
  /** Answers that another window writes into the notebook. */
  elsewhere = new WeakSet();
  #model;
  #frame;
  #compose;
  #conversation;
  #caller;
  #senses;
  #retry;
  #transport = null;
  #unheard = null; // the run that is to stop once the server is there again

  #handlers = {
    delta: ({ text, tokens, reasoning = "", index = 0, tool_call_deltas = [], tool_calls = [] }, turn) => {
      if (index !== 0) return;
      const calls = gain(turn, { text, reasoning, tool_calls });
      this.#view(turn).add(text, tokens, reasoning);
      if (calls.length || tool_call_deltas.length) this.#view(turn).call(calls, tool_call_deltas);
    },
    restart: (_, turn) => {
      turn.content = turn.reasoning = "";
      delete turn.tool_calls;
      this.#view(turn).restart();
    },
    done: ({ finish_reason, usage, ttft_s, tokens_per_s }, turn) => {
      Object.assign(turn, { finish_reason, usage, ttft_s, tokens_per_s });
      this.#view(turn).finish(numbers(turn));
      if (turn === this.live && turn.tool_calls && finish_reason?.type !== "abort") {
        this.#keep(turn);
        return this.#caller.call(turn);
      }
      if (finish_reason?.type === "abort") return this.#end(turn, "Stopped");
      const view = this.#view(turn);
      const awaited = turn === this.live;
      this.#end(turn, `Answer ready, ${usage?.completion_tokens ?? view.tokens} tokens`);
      if (awaited) this.#frame.read(view.body);
    },
    error: ({ error }, turn) => {
      turn.error = error.message;
      this.#view(turn).fail(error, () => this.#retry(turn));
      this.#end(turn, "Failed");
    },
  };

  /** `retry(turn)` asks again for an answer that failed. */
  constructor(model, { frame, compose, conversation, caller, senses, retry }) {
    this.#model = model;
    this.#frame = frame;
    this.#compose = compose;
    this.#conversation = conversation;
    this.#caller = caller;
    this.#senses = senses;
    this.#retry = retry;
  }

  open(transport) {
    this.#transport = transport;
  }

  begin(turn) {
    this.#caller.done();
    this.live = turn;
    this.#view(turn); // now, as it says nothing yet: what comes is added to it, also where another branch is shown
    this.#frame.busy = this.#compose.busy = true;
    this.#conversation.following.during(() => this.#conversation.show());
    return turn;
  }

  /** Read an unfinished answer from its beginning, as a snapshot lacks the tool call that is still being written. */
  follow(turn) {
    this.#handlers.restart({}, turn);
    this.#transport.follow(turn.run, 0);
  }

  /** An event of this chat, whichever view or program caused it. */
  receive(event, data) {
    const turn = this.#conversation.tree.answer(data.run);
    if (data.run && (!turn || !Tree.unfinished(turn))) return;
    if (!common(this.#frame, event, data, this.live)) this.#handlers[event]?.(data, turn);
    else if (event === "online" && this.live?.run === this.#unheard) this.stop();
  }

  async stop() {
    if (this.#caller.waiting) return this.#caller.stop();
    const { run } = this.live;
    this.#frame.say("Stopping");
    try {
      await this.#transport.cancel(run);
    } catch (error) {
      if (!error.status) this.#unheard = run;
      if (this.live?.run === run) this.#frame.say(error.message);
    }
  }

  /** End the answer, since nobody makes its calls; `words` say why. */
  uncalled(words) {
    const turn = this.live;
    this.#end(turn, words);
    this.#view(turn).finish([numbers(turn), words].filter(Boolean).join(" · "));
    this.#conversation.show();
  }

  /** No answer is being written any more. */
  rest(words) {
    this.#caller.done();
    this.live = null;
    this.#compose.busy = false;
    this.#frame.rest(words);
  }

  #end(turn, words) {
    const lost = this.#keep(turn);
    if (turn !== this.live) return;
    this.#senses.look();
    this.rest(lost ? `${words}. ${lost}` : words);
  }

  /** Tell the kernel that this answer has ended, and keep it in the notebook; returns words for what is not kept. */
  #keep(turn) {
    const here = !this.elsewhere.has(turn);
    const { tree } = this.#conversation;
    if (here) this.#frame.kept();
    tellTurns(this.#model, "ended", here ? tree.said : []);
    return here ? this.#frame.notebook.keep(this.#model.get("chat"), tree) : "";
  }

  #view(turn) {
    return this.#conversation.view(turn);
  }
}
