// Server-sent events from text in chunks that may be cut anywhere. Knows nothing of what the data mean.

/** The server sends something every ten seconds: a connection silent for so long has died unnoticed, as in a sleep. */
const SILENT_MS = 30_000;

/** The events of a response's body as they come; `silent()` is called if the connection has died. */
export async function* events(body, silent) {
  const decoder = new SseDecoder();
  const text = new TextDecoder();
  const reader = body.getReader();
  for (;;) {
    const silence = setTimeout(silent, SILENT_MS);
    const { done, value } = await reader.read().finally(() => clearTimeout(silence));
    if (done) return;
    yield* decoder.feed(text.decode(value, { stream: true }));
  }
}

export class SseDecoder {
  #rest = []; // pieces of a line that is not whole: joined only at its end, as there may be hundreds
  #data = [];
  #event = "";

  /** The events that `chunk` completes, as {event, data}. */
  feed(chunk) {
    const lines = chunk.split("\n");
    const rest = lines.pop();
    if (lines.length) lines[0] = this.#rest.splice(0).join("") + lines[0];
    this.#rest.push(rest);
    const events = [];
    for (const line of lines) {
      const event = this.#line(line.endsWith("\r") ? line.slice(0, -1) : line);
      if (event) events.push(event);
    }
    return events;
  }

  #line(line) {
    if (line === "") return this.#dispatch();
    const colon = line.indexOf(":");
    const name = colon < 0 ? line : line.slice(0, colon);
    const value = colon < 0 ? "" : line.slice(colon + (line[colon + 1] === " " ? 2 : 1));
    if (name === "data") this.#data.push(value);
    else if (name === "event") this.#event = value;
    return null;
  }

  #dispatch() {
    const event = { event: this.#event || "message", data: this.#data.join("\n") };
    const complete = this.#data.length > 0;
    this.#data = [];
    this.#event = "";
    return complete ? event : null;
  }
}
