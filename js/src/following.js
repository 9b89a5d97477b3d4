// The end of a text that grows is kept in sight of a reader who is there. One who scrolls up, however slowly, is left
// alone until the end is reached again.

import { h } from "./dom.js";

const NEAR = 24;
const UP = ["ArrowUp", "PageUp", "Home"];

export class Following {
  #scroller;
  #follows = true;
  #up = false;
  #last = 0;

  constructor(scroller) {
    this.#scroller = scroller;
    scroller.addEventListener("wheel", ({ deltaY }) => this.#turn(deltaY < 0), { passive: true });
    scroller.addEventListener("scroll", () => this.#look(), { passive: true });
    scroller.addEventListener("pointerdown", () => this.#turn(false), { passive: true });
    scroller.addEventListener("keydown", ({ key, target }) => {
      if (target !== scroller) return;
      this.#turn(UP.includes(key));
      if (key === "End") this.toEnd();
    });
  }

  /** Whether the reader is at the end. */
  get follows() {
    return this.#follows;
  }

  /** Do `work`, which may make the text longer. */
  during(work) {
    this.#look();
    work();
    if (this.#follows) this.toEnd();
    else this.#look();
  }

  /** Do `work`, which shows another text: the reader stays in place, be that its end or not. */
  instead(work) {
    work();
    this.#last = this.#scroller.scrollTop;
    this.#up = false;
    this.#follow(this.#room - this.#last <= 1);
  }

  toEnd() {
    this.#scroller.scrollTop = this.#scroller.scrollHeight;
    this.#last = this.#scroller.scrollTop;
    this.#follow(true);
    this.#up = false;
  }

  /** Hears that the reader has left the end, or is there again. */
  changed() {}

  #follow(follows) {
    if (this.#follows === follows) return;
    this.#follows = follows;
    this.changed(follows);
  }

  /** The browser scrolls some frames after the key or the wheel, and may first be where it was: neither holds it back. */
  #turn(up) {
    this.#up = up && this.#room > 0;
    if (this.#up) this.#follow(false);
  }

  #look() {
    const { scrollTop } = this.#scroller;
    const left = this.#room - scrollTop;
    if (this.#room <= 0 || (left <= 1 && !this.#up)) this.#follow(true);
    else if (scrollTop > this.#last && left < NEAR && !this.#up) this.#follow(true);
    else if (scrollTop < this.#last && left > 1) this.#follow(false);
    this.#last = scrollTop;
  }

  /** How far one can scroll. */
  get #room() {
    return this.#scroller.scrollHeight - this.#scroller.clientHeight;
  }
}

/** The same, with a button that leads back; it is there while the reader is elsewhere. */
export class WayBack extends Following {
  element;

  constructor(scroller) {
    super(scroller);
    const name = "To the end";
    const button = h("button", { type: "button", class: "nbgen-back", "aria-label": name, title: name, click: () => this.#press(scroller) }, "↓");
    this.element = h("div", { class: "nbgen-end", hidden: true }, button);
  }

  changed(follows) {
    this.element.hidden = follows;
  }

  /** The button is gone then. */
  #press(scroller) {
    this.toEnd();
    scroller.focus({ preventScroll: true });
  }
}
