// A recording from the microphone, if the browser gives the page access: one button begins and ends it.

import { h } from "./dom.js";
import { MAX_SECONDS } from "./sound.js";
import { clock } from "./wav.js";

const TICK_MS = 250;
const REFUSALS = {
  NotAllowedError: "The browser did not allow the microphone",
  NotFoundError: "There is no microphone",
};

export class Recorder {
  #say;
  #take;
  #allowed;
  #count = 0;
  #stream = null;
  #recording = null;
  #asking = false;
  #closed = false;
  #timer = 0;
  #began = 0;
  #time = h("span", { class: "nbgen-time", role: "timer", "aria-label": "Recorded", hidden: true });
  #button = h("button", { type: "button", class: "nbgen-quiet nbgen-attach", hidden: true, click: () => this.#press() });

  /** `take(file)` gets each recording. `allowed()` resolves to the reason why none may be made, or to "". */
  constructor({ say, take, allowed }) {
    this.#say = say;
    this.#take = take;
    this.#allowed = allowed;
    this.#name();
    this.element = h("span", {}, this.#button, this.#time);
  }

  get running() {
    return Boolean(this.#recording) || this.#asking;
  }

  /** Show the button where it is wanted and the browser can record. */
  offer(wanted) {
    this.#button.hidden = !(wanted && canRecord()) && !this.running;
  }

  /** Release the microphone and drop the recording. */
  close() {
    this.#closed = true;
    this.#end();
  }

  #press() {
    if (this.#recording) this.#recording.stop();
    else if (!this.#asking) this.#start();
  }

  async #start() {
    this.#asking = true;
    try {
      const refusal = await this.#allowed();
      if (refusal) return this.#say(refusal);
      this.#say("Allow the microphone in the browser");
      this.#listen(await navigator.mediaDevices.getUserMedia({ audio: true }));
    } catch (error) {
      this.#end();
      this.#say(REFUSALS[error.name] ?? `The microphone cannot be used: ${error.message}`);
    } finally {
      this.#asking = false;
    }
  }

  #listen(stream) {
    this.#stream = stream;
    if (this.#closed) return this.#end();
    const recording = new MediaRecorder(stream);
    const pieces = [];
    recording.ondataavailable = ({ data }) => pieces.push(data);
    recording.onstop = () => this.#stopped(recording, pieces);
    recording.start();
    this.#recording = recording;
    this.#began = performance.now();
    this.#timer = setInterval(() => this.#tick(), TICK_MS);
    this.#name();
    this.#tick();
    this.#say("Recording");
  }

  #tick() {
    const seconds = (performance.now() - this.#began) / 1000;
    this.#time.textContent = clock(seconds);
    if (seconds >= MAX_SECONDS - 1 && this.#recording.state === "recording") this.#recording.stop();
  }

  #stopped({ mimeType }, pieces) {
    if (this.#closed) return;
    this.#end();
    this.#count += 1;
    this.#take(new File(pieces, `recording ${this.#count}`, { type: mimeType || "audio/webm" }));
  }

  #end() {
    clearInterval(this.#timer);
    for (const track of this.#stream?.getTracks() ?? []) track.stop();
    this.#stream = this.#recording = null;
    this.#name();
  }

  #name() {
    const name = this.#recording ? "Stop recording" : "Record a sound";
    this.#button.setAttribute("aria-label", name);
    this.#button.setAttribute("title", name);
    this.#button.textContent = this.#recording ? "Stop" : "Record";
    this.#time.hidden = !this.#recording;
  }
}

/** Whether the browser can record: it gives the microphone only to pages on https or on this machine. */
function canRecord() {
  return Boolean(globalThis.navigator?.mediaDevices?.getUserMedia) && typeof MediaRecorder === "function";
}
