// The notebook around a widget, where the page lets us reach it: cells and metadata. Elsewhere every call does nothing.

import { fitting } from "./content.js";

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
    const below = this.#below();
    if (below) this.#shared.insertCell(below, { cell_type: "code", source });
    return Boolean(below);
  }

  /** Another source for the code cell below the widget's; whether there is one. */
  replaceBelow(source) {
    const below = this.#below();
    const cell = below && this.#shared.getCell?.(below);
    if (cell?.cell_type !== "code") return false;
    cell.setSource(source);
    return true;
  }

  /** The place after the widget's cell; 0 where there is none. */
  #below() {
    const cell = this.#element.closest?.(".jp-Cell");
    if (!this.reachable || !cell) return 0;
    return [...cell.closest(".jp-Notebook").querySelectorAll(".jp-Cell")].indexOf(cell) + 1;
  }

  /** What the notebook keeps of a chat, as `keep` left it. */
  kept(chat) {
    return this.#chats()[chat] ?? null;
  }

  /** Keep a chat's turns in the notebook's metadata, so that they are there when it is opened again. */
  keep(chat, turns) {
    if (typeof this.#shared?.setMetadata !== "function") return;
    const kept = fitting(turns, MAX_SAVED); // images and sounds are large
    if (!kept) return;
    this.#shared.setMetadata("nbgen", { ...this.#shared.getMetadata("nbgen"), chats: { ...this.#chats(), [chat]: kept } });
  }

  #chats() {
    return this.#shared?.getMetadata?.("nbgen")?.chats ?? {};
  }
}
