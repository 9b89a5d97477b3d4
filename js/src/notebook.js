// The notebook around a widget, where the page lets us reach it: cells and metadata. Elsewhere every call does nothing.

import { lean } from "./content.js";

const MAX_SAVED = 200_000;

export class Notebook {
  #shared;
  #element;

  constructor(model, element) {
    this.#shared = model.widget_manager?.context?.model?.sharedModel;
    this.#element = element;
  }

  get reachable() {
    return typeof this.#shared?.insertCell === "function";
  }

  /** A new code cell below the widget's; whether there is one now. */
  insertBelow(source) {
    const cell = this.#element.closest?.(".jp-Cell");
    if (!this.reachable || !cell) return false;
    const cells = [...cell.closest(".jp-Notebook").querySelectorAll(".jp-Cell")];
    this.#shared.insertCell(cells.indexOf(cell) + 1, { cell_type: "code", source });
    return true;
  }

  /** What the notebook keeps of a chat, as `keep` left it. */
  kept(chat) {
    return this.#chats()[chat] ?? null;
  }

  /** Keep a chat's turns in the notebook's metadata, so that they are there when it is opened again. */
  keep(chat, turns) {
    if (typeof this.#shared?.setMetadata !== "function") return;
    const fits = (list) => JSON.stringify(list).length <= MAX_SAVED;
    const kept = [turns, turns.map((turn) => ({ ...turn, content: lean(turn.content) }))].find(fits); // images are large
    if (!kept) return;
    this.#shared.setMetadata("nbgen", { ...this.#shared.getMetadata("nbgen"), chats: { ...this.#chats(), [chat]: kept } });
  }

  #chats() {
    return this.#shared?.getMetadata?.("nbgen")?.chats ?? {};
  }
}
