// Images on their way into a message: pasted, dropped or chosen, made small, and shown until they are sent.

import { h } from "./dom.js";

const MAX_IMAGES = 16;
const MAX_SIDE = 1280;
const MAX_BYTES = 1_000_000;
/** Types that are sent as they are, where they are small. */
const USUAL = ["image/png", "image/jpeg", "image/webp"];

export class Images {
  #given = [];
  #say;
  #done;
  #input = h("input", { type: "file", accept: "image/*", multiple: true, hidden: true, change: () => this.#chosen() });

  /** `say(words)` tells what happened; `done()` gives the focus back. `allowed()` resolves to whether the model takes images, or to words why not. */
  constructor({ say, done, allowed }) {
    this.#say = say;
    this.#done = done;
    this.allowed = allowed;
    this.list = h("ul", { class: "nbgen-images", "aria-label": "Images of this message", hidden: true });
    this.button = h("button", { type: "button", class: "nbgen-quiet nbgen-attach", "aria-label": "Add images", title: "Add images", hidden: true, click: () => this.#input.click() }, "Image");
    this.element = h("div", { class: "nbgen-attach-area" }, this.button, this.#input);
  }

  get parts() {
    return this.#given.map(({ url }) => ({ type: "image_url", image_url: { url } }));
  }

  clear() {
    this.#given = [];
    this.#show();
  }

  /** Take the images of a paste, unless they are only another form of its text. */
  paste(event) {
    const { files, types } = event.clipboardData;
    if (!files.length || types.includes("text/plain")) return;
    event.preventDefault();
    this.add([...files]);
  }

  /** Take what is dropped on `element`. Any file: else the browser would leave the page for it. */
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
    const refusal = await this.allowed();
    if (refusal) return this.#say(refusal);
    for (const file of files) {
      if (this.#given.length >= MAX_IMAGES) return this.#say(`A message holds at most ${MAX_IMAGES} images`);
      try {
        this.#given.push({ name: file.name || "pasted image", url: await small(file) });
        this.#say(`${this.#given.at(-1).name} added, ${count(this.#given.length)}`);
      } catch {
        this.#say(`${file.name || "That"} is no image that this browser can read`);
      }
      this.#show();
    }
    this.#done();
  }

  #chosen() {
    this.add([...this.#input.files]);
    this.#input.value = "";
  }

  #remove(image) {
    this.#given = this.#given.filter((other) => other !== image);
    this.#show();
    this.#say(`${image.name} removed, ${count(this.#given.length)}`);
    this.#done();
  }

  #show() {
    this.list.hidden = !this.#given.length;
    this.list.replaceChildren(
      ...this.#given.map((image) =>
        h(
          "li",
          {},
          h("img", { src: image.url, alt: image.name }),
          h("button", { type: "button", class: "nbgen-remove", "aria-label": `Remove ${image.name}`, click: () => this.#remove(image) }, "×"),
        ),
      ),
    );
  }
}

function count(images) {
  return images === 1 ? "1 image" : `${images} images`;
}

/** The image as a data URL, no larger than models look at. */
async function small(file) {
  const bitmap = await createImageBitmap(file);
  const scale = Math.min(1, MAX_SIDE / Math.max(bitmap.width, bitmap.height));
  if (scale === 1 && file.size <= MAX_BYTES && USUAL.includes(file.type)) return dataUrl(file);
  const canvas = h("canvas", { width: Math.max(1, Math.round(bitmap.width * scale)), height: Math.max(1, Math.round(bitmap.height * scale)) });
  const context = canvas.getContext("2d");
  context.fillStyle = "white";
  context.fillRect(0, 0, canvas.width, canvas.height);
  context.drawImage(bitmap, 0, 0, canvas.width, canvas.height);
  bitmap.close();
  return canvas.toDataURL("image/jpeg", 0.9);
}

function dataUrl(file) {
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(reader.result);
    reader.onerror = reject;
    reader.readAsDataURL(file);
  });
}
