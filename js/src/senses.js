// What the model takes beside text: shows the buttons for these files, and says why others are not taken.

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

  /** Ask again if it was not known, since the model was not loaded. */
  look() {
    if (this.#unloaded) this.offer();
  }

  /** Show the buttons for the files that the model takes. */
  async offer() {
    const { state, name, model } = await this.#ask();
    const media = model?.media ?? [];
    this.#unloaded = !model;
    this.#files().offer(media);
    return { known: state === "ready" && Boolean(model), name, media };
  }

  /** Show the buttons for a model that has been loaded since. Returns the model's name. */
  async renew() {
    const { name, model } = await this.#ask();
    if (model) this.#files().offer(model.media ?? []);
    return name;
  }

  async #ask() {
    return (await this.#transport?.model().catch(() => null)) ?? {};
  }

  /**
   * Why the model takes no "image" or "audio"; "" if it does, or if that is unknown: until the model is loaded, and of
   * servers of other kinds, which do not tell.
   */
  async refusal(kind) {
    const { known, name, media } = await this.offer();
    if (!known || media.includes(kind)) return "";
    const others = media.map((taken) => SENSES[taken]?.files ?? taken);
    const takes = others.length ? `takes text and ${others.join(" and ")}` : "takes text only";
    return `${name} ${takes}: ${SENSES[kind].files} need a model that ${SENSES[kind].verb}`;
  }
}
