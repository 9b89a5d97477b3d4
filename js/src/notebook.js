// The notebook around a widget: its cells and metadata, where the page gives access. Elsewhere every call does nothing.

import { fitting, newest } from "./content.js";
import { Tree } from "./tree.js";

const MAX_SAVED = 200_000;
/** The random ids of chats without a name, made by Python or by this page: no later cell can ask for such a chat. */
const MADE_UP = /^(?:[0-9a-f]{24}|[0-9a-f]{32})$/;
/** The kernel's hash after a chat's name, as other notebooks may have the same name (nbgen/notebook/chat_name.py). */
const OF_KERNEL = /\.[0-9a-f]{16}$/;
/** The chats that the page's panels show, by notebook. It is global, as every widget may have a bundle of its own. */
const SHOWN = (globalThis[Symbol.for("nbgen.shown")] ??= new WeakMap());

export class Notebook {
  #shared;
  #element;
  #shows;

  constructor(model, element) {
    this.#shared = model.widget_manager?.context?.model?.sharedModel;
    this.#element = element;
    this.#shows = { chat: model.get("chat") };
    this.#panels.add(this.#shows);
  }

  /** The panel is no longer in the page. */
  close() {
    this.#panels.delete(this.#shows);
  }

  get reachable() {
    return typeof this.#shared?.insertCell === "function";
  }

  /** Insert a code cell below the widget's cell. Returns whether that was possible. */
  insertBelow(source) {
    const below = this.#below();
    if (below) this.#shared.insertCell(below, { cell_type: "code", source });
    return Boolean(below);
  }

  /** Replace the source of the code cell below the widget's cell. Returns whether there is such a cell. */
  replaceBelow(source) {
    const below = this.#below();
    const cell = below && this.#shared.getCell?.(below);
    if (cell?.cell_type !== "code") return false;
    cell.setSource(source);
    return true;
  }

  /** The index after the widget's cell; 0 if unknown. A page may hold only the cells in view, and then marks each with its index. */
  #below() {
    const cell = this.#element.closest?.(".jp-Cell");
    if (!this.reachable || !cell) return 0;
    const cells = [...cell.closest(".jp-Notebook").querySelectorAll(".jp-Cell")];
    return (cells.length === this.#shared.cells?.length ? cells.indexOf(cell) : Number(cell.dataset.windowedListIndex)) + 1 || 0;
  }

  /** The turns of a chat that `keep` has written into the notebook. */
  kept(chat) {
    return this.#chats()[keptAs(chat)] ?? [];
  }

  /**
   * Keep a chat's turns in the notebook's metadata for when it is opened again, merged with those that another panel
   * has kept of the same chat. Drops chats without a name that no panel shows. Returns words for what is too long to be
   * kept, or "".
   */
  keep(chat, tree) {
    if (!this.#writable) return "";
    const [turns, words] = within(Tree.merged(this.kept(chat), tree.list(), tree.dropped, true));
    const others = Object.entries(this.#chats()).filter(([id]) => !MADE_UP.test(id) || this.#isShown(id));
    this.#write({ ...Object.fromEntries(others), ...(turns && { [keptAs(chat)]: turns }) });
    return words;
  }

  /** If this panel's chat has no name: the last unnamed chat that no panel shows any more, such as after its cell was run again. */
  get left() {
    const chats = Object.entries(this.#chats()).filter(([id]) => MADE_UP.test(id) && !this.#isShown(id));
    const [chat, turns] = (MADE_UP.test(this.#shows.chat) && chats.at(-1)) || [];
    return chat ? { chat, tree: Tree.from(turns) } : null;
  }

  /** Forget a chat without a name. */
  drop(chat) {
    const { [chat]: dropped, ...others } = this.#chats();
    if (this.#writable && dropped && MADE_UP.test(chat)) this.#write(others);
  }

  get #writable() {
    return typeof this.#shared?.setMetadata === "function";
  }

  get #panels() {
    if (!this.#shared) return new Set();
    if (!SHOWN.has(this.#shared)) SHOWN.set(this.#shared, new Set());
    return SHOWN.get(this.#shared);
  }

  #isShown(id) {
    return [...this.#panels].some(({ chat }) => chat === id);
  }

  #write(chats) {
    this.#shared.setMetadata("nbgen", { ...this.#shared.getMetadata("nbgen"), chats });
  }

  #chats() {
    return { __proto__: null, ...this.#shared?.getMetadata?.("nbgen")?.chats }; // a chat may be called "constructor"
  }
}

/** The id under which the notebook keeps a chat: without the kernel's hash. */
function keptAs(chat) {
  return chat.replace(OF_KERNEL, "");
}

/** As much of a conversation as fits, and words for the rest. */
function within(tree) {
  const all = fitting(tree.list(), MAX_SAVED); // images and sounds are large
  if (all) return [all, ""];
  const branch = fitting(tree.branch(), MAX_SAVED);
  if (branch) return [branch, "The notebook keeps only the versions that are shown"];
  const last = newest(tree.branch(), MAX_SAVED);
  return [last, last ? "The notebook keeps only the newest turns" : "This is too long for the notebook to keep"];
}
