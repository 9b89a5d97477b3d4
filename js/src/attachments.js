// Images and sounds for the next message: pasted, dropped, chosen or recorded, and shown until they are sent. Text files
// are added to the text of the message.

import { h } from "./dom.js";
import { smallImage } from "./image.js";
import { quoted } from "./quoted.js";
import { Recorder } from "./recorder.js";
import { player, smallSound } from "./sound.js";

const MAX_FILES = 16;
/** The kinds of files, by their names in a model's `media`. */
const KINDS = {
  image: { word: "image", read: smallImage, part: (url) => ({ type: "image_url", image_url: { url } }), show: (url, alt) => h("img", { src: url, alt }) },
  audio: { word: "sound", read: smallSound, part: (url) => ({ type: "audio_url", audio_url: { url } }), show: (url, name) => h("span", { class: "nbgen-sound" }, h("span", { class: "nbgen-note" }, name), player(url, name)) },
};

export class Attachments {
  #given = [];
  #reading = 0;
  #pasted = 0;
  #say;
  #done;
  #write;
  #allowed;
  #input = h("input", { type: "file", multiple: true, hidden: true, change: () => this.#chosen() });
  #buttons = { image: this.#button("image", "Image"), audio: this.#button("audio", "Sound") };
  #recorder;

  /** `say(words)` shows what happened, `done()` gives the focus back, `write(text)` adds to the message's text. `allowed(kind)` resolves to why a model takes no such file, or to "". */
  constructor({ say, done, write, allowed }) {
    this.#say = say;
    this.#done = done;
    this.#write = write;
    this.#allowed = allowed;
    this.#recorder = new Recorder({ say, take: (file) => this.add([file]), allowed: () => allowed("audio") });
    this.list = h("ul", { class: "nbgen-files", "aria-label": "Files of this message", hidden: true });
    this.element = h("div", {}, ...Object.values(this.#buttons), this.#recorder.element, this.#input);
  }

  get parts() {
    return this.#given.map(({ kind, url }) => KINDS[kind].part(url));
  }

  /** Why the message cannot be sent yet; "" if it can. */
  get unfinished() {
    if (this.#recorder.running) return "Stop the recording first";
    return this.#reading ? "A file is still being read" : "";
  }

  /** Show the buttons for the kinds of files in a model's `media`. */
  offer(media) {
    for (const [kind, button] of Object.entries(this.#buttons)) button.hidden = !media.includes(kind);
    this.#recorder.offer(media.includes("audio"));
  }

  get given() {
    return this.#given;
  }

  set given(files) {
    this.#given = [...files]; // the panel before may still be reading one
    this.#show();
  }

  clear() {
    this.given = [];
  }

  /** Release the microphone. */
  close() {
    this.#recorder.close();
  }

  /** Take the files of a paste, unless they are only another form of its text. */
  paste(event) {
    const { files, types } = event.clipboardData;
    if (!files.length || types.includes("text/plain")) return;
    event.preventDefault();
    this.add([...files]);
  }

  /** Take files dropped on `element`, of any kind: the browser would leave the page for a file that nobody takes. */
  receive(element) {
    const files = ({ dataTransfer }) => dataTransfer?.types.includes("Files");
    element.addEventListener("dragover", (event) => files(event) && event.preventDefault());
    element.addEventListener("drop", (event) => {
      if (!files(event)) return;
      event.preventDefault();
      event.stopPropagation();
      this.add([...event.dataTransfer.files]);
    });
  }

  async add(files) {
    this.#done(); // now: once a file has been read, somebody may be writing elsewhere
    this.#reading += 1;
    const refusals = [];
    for (const file of files) {
      const name = file.name || `pasted file ${(this.#pasted += 1)}`;
      const refusal = await this.#refusal(file, name);
      if (refusal) refusals.push(refusal);
      else this.#say(kindOf(file) ? `${name} added, ${this.#count()}` : `${name} added as text`);
    }
    this.#reading -= 1;
    if (refusals.length) this.#say([...new Set(refusals)].join("; "));
  }

  /** Take a file. Returns why it was not taken, or "". */
  async #refusal(file, name) {
    const kind = kindOf(file);
    const refusal = kind && (await this.#allowed(kind));
    if (refusal) return refusal;
    if (kind && this.#given.length >= MAX_FILES) return `A message holds at most ${MAX_FILES} images and sounds`;
    try {
      const url = kind && (await KINDS[kind].read(file));
      if (kind) this.#given.push({ kind, name, url }); // to those of now: one may have been removed meanwhile
      else this.#write(await quoted(file, name));
    } catch (error) {
      if (error instanceof RangeError) return `${name} ${error.message}`;
      return kind ? `${name} is no ${KINDS[kind].word} that this browser can read` : `${name} is no image, sound or text`;
    }
    this.#show();
    return "";
  }

  #button(kind, word) {
    const { word: noun } = KINDS[kind];
    const choose = () => {
      this.#input.accept = `${kind}/*`;
      this.#input.click();
    };
    const names = { "aria-label": `Add ${noun}s`, title: `Add ${noun}s` };
    return h("button", { type: "button", class: "nbgen-quiet nbgen-attach", ...names, hidden: true, click: choose }, word);
  }

  #chosen() {
    this.add([...this.#input.files]);
    this.#input.value = "";
  }

  #remove(file) {
    this.#given = this.#given.filter((other) => other !== file);
    this.#show();
    this.#say(`${file.name} removed, ${this.#count()}`);
    this.#done();
  }

  #count() {
    const words = Object.entries(KINDS).map(([kind, { word }]) => {
      const count = this.#given.filter((file) => file.kind === kind).length;
      return count && `${count} ${word}${count === 1 ? "" : "s"}`;
    });
    return words.filter(Boolean).join(" and ") || "nothing left";
  }

  #show() {
    this.list.hidden = !this.#given.length;
    const known = new Map([...this.list.children].map((item) => [item.file, item])); // what plays goes on playing
    this.list.replaceChildren(...this.#given.map((file) => known.get(file) ?? this.#item(file)));
  }

  #item(file) {
    const remove = h("button", { type: "button", class: "nbgen-remove", "aria-label": `Remove ${file.name}`, title: "Remove", click: () => this.#remove(file) }, "×");
    return Object.assign(h("li", {}, KINDS[file.kind].show(file.url, file.name), remove), { file });
  }
}

/** A file's kind by its type, null for text. Of a video only the sound counts; browsers take TypeScript's `.ts` for video. */
export function kindOf({ type, name = "" }) {
  if (/\.tsx?$/.test(name)) return null;
  if (type.startsWith("image/")) return "image";
  return /^(audio|video)\//.test(type) ? "audio" : null;
}
