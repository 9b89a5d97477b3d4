// What the model takes beside text: which ways to give files there are, and words for what it does not take.

const SENSES = { image: { files: "images", verb: "sees" }, audio: { files: "sounds", verb: "hears" }, video: { files: "videos" } };

export class Senses {
  #files;
  #transport = null;
  #unloaded = false;

  constructor(files) {
    this.#files = files;
  }

  open(transport) {
    this.#transport = transport;
    return this.offer();
  }

  /** Ask again where nobody knew before the model was loaded. */
  look() {
    if (this.#unloaded) this.offer();
  }

  /** Show the ways to give what the model takes. */
  async offer() {
    const { state, name, model } = (await this.#transport?.model().catch(() => null)) ?? {};
    const media = model?.media ?? [];
    this.#unloaded = !model;
    this.#files().offer(media);
    return { ready: state === "ready", name, media };
  }

  /** Words why the model takes no "image" or "audio"; "" where it does, or where nobody knows before it is loaded. */
  async refusal(kind) {
    const { ready, name, media } = await this.offer();
    if (!ready || media.includes(kind)) return "";
    const others = media.map((taken) => SENSES[taken]?.files ?? taken);
    const takes = others.length ? `takes text and ${others.join(" and ")}` : "takes text only";
    return `${name} ${takes}: ${SENSES[kind].files} need a model that ${SENSES[kind].verb}`;
  }
}
