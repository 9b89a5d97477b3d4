// Keeps the end of a growing text in sight while the reader is at the end, also where its place becomes narrower, or is
// hidden for a while, as behind another tab. A reader who scrolls up, however slowly, is not moved until the end is
// reached again.

import { h } from "./dom.js";

const NEAR = 24;
const UP = ["ArrowUp", "PageUp", "Home"];
/** What an image and a video tell when their height is known. */
const SIZED = ["load", "loadedmetadata"];

export class Following {
  #scroller;
  #follows = true;
  #up = false;
  #last = 0;
  #away = false; // it was not shown when it was looked at last

  /** `held()` returns whether the text must not move by itself, as when the reader points at it. */
  constructor(scroller, held = () => false) {
    this.#scroller = scroller;
    const stay = () => held() || this.#stay();
    if (globalThis.ResizeObserver) new ResizeObserver(stay).observe(scroller);
    for (const name of SIZED) scroller.addEventListener(name, stay, true);
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

  /** Do `work`, which shows another text: the scroll position stays, whether or not it is that text's end. */
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

  /** What is around the text, or in it, has another size. Browsers forget the position of what leaves the page. */
  #stay() {
    const back = this.#away;
    this.#away = this.#scroller.clientHeight === 0;
    if (this.#away) return;
    if (this.#follows) this.toEnd();
    else if (back) this.#scroller.scrollTop = this.#last;
    else this.#look();
  }

  /** Called when the reader has left the end, or is there again. For subclasses. */
  changed() {}

  #follow(follows) {
    if (this.#follows === follows) return;
    this.#follows = follows;
    this.changed(follows);
  }

  /** A key or the wheel goes `up` or not. The browser scrolls some frames later: going up stops following at once. */
  #turn(up) {
    this.#up = up && this.#room > 0;
    if (this.#up) this.#follow(false);
  }

  #look() {
    if (this.#away || this.#scroller.clientHeight === 0) return; // nobody sees its end
    const { scrollTop } = this.#scroller;
    const left = this.#room - scrollTop;
    if (this.#room <= 0 || (left <= 1 && !this.#up)) this.#follow(true);
    else if (scrollTop > this.#last && left < NEAR && !this.#up) this.#follow(true);
    else if (scrollTop < this.#last && left > 1) this.#follow(false);
    this.#last = scrollTop;
  }

  /** The largest scroll position. */
  get #room() {
    return this.#scroller.scrollHeight - this.#scroller.clientHeight;
  }
}

/** Following with a button that leads to the end, shown while the reader is not there. */
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

  /** The text takes the focus, since the button disappears. */
  #press(scroller) {
    this.toEnd();
    scroller.focus({ preventScroll: true });
  }
}
