import assert from "node:assert/strict";
import { test } from "node:test";
import "./page.js";
import { Following, WayBack } from "../src/following.js";

/** An element 100 high whose text can grow. */
class Scroller {
  clientHeight = 100;
  scrollHeight = 500;
  heard = {};
  #top = 0;

  get scrollTop() {
    return this.#top;
  }
  set scrollTop(top) {
    this.#top = Math.max(0, Math.min(top, this.scrollHeight - this.clientHeight));
  }
  addEventListener(name, listener) {
    this.heard[name] = listener;
  }
  press(key) {
    this.heard.keydown({ key, target: this });
  }
}

function followed(held) {
  const scroller = new Scroller();
  const following = new Following(scroller, held);
  const grow = () => following.during(() => (scroller.scrollHeight += 20));
  following.toEnd();
  return { scroller, following, grow, left: () => scroller.scrollHeight - 100 - scroller.scrollTop };
}

test("a reader at the end stays there", () => {
  const { grow, left } = followed();
  grow();
  grow();
  assert.equal(left(), 0);
});

test("the least step up ends it, and steps add up", () => {
  const { scroller, grow, left } = followed();
  scroller.scrollTop -= 5;
  grow();
  assert.equal(left(), 25);
  scroller.scrollTop -= 5;
  grow();
  assert.equal(left(), 50);
});

test("a step down to the end begins it again, one that stays above does not", () => {
  const { scroller, grow, left } = followed();
  scroller.scrollTop -= 200;
  grow();
  scroller.scrollTop += 100;
  grow();
  assert.equal(left(), 140);
  scroller.scrollTop = scroller.scrollHeight;
  grow();
  assert.equal(left(), 0);
});

test("a key or a wheel that has not moved anything yet counts", () => {
  for (const up of [(scroller) => scroller.press("ArrowUp"), (scroller) => scroller.press("PageUp"), (scroller) => scroller.heard.wheel({ deltaY: -1 })]) {
    const { scroller, grow, left } = followed();
    up(scroller);
    grow();
    assert.equal(left(), 20);
    scroller.press("End");
    assert.equal(left(), 0);
    grow();
    assert.equal(left(), 0);
  }
});

test("a text that becomes shorter, or fits, takes nobody from the end", () => {
  const { scroller, following, grow, left } = followed();
  following.during(() => {
    scroller.scrollHeight = 60;
    scroller.scrollTop = 0;
  });
  scroller.heard.wheel({ deltaY: -1 });
  for (let i = 0; i < 5; i += 1) grow();
  assert.equal(left(), 0);
});

test("where a shorter text has its end in sight, nobody has left it", () => {
  for (const [top, height] of [[0, 60], [300, 350]]) {
    for (const way of ["during", "instead"]) {
      const { scroller, following } = followed();
      scroller.heard.wheel({ deltaY: -1 });
      scroller.scrollTop = top;
      scroller.heard.scroll();
      scroller.heard.wheel({ deltaY: 1 });
      const heard = [];
      following.changed = (follows) => heard.push(follows);
      following[way](() => {
        scroller.scrollHeight = height;
        scroller.scrollTop = top;
      });
      assert.deepEqual(heard, [true], `${way} ${height}`);
    }
  }
});

test("where another text is longer, a reader stays in place, who has left its end", () => {
  const { scroller, following, grow, left } = followed();
  const heard = [];
  following.changed = (follows) => heard.push(follows);
  following.instead(() => (scroller.scrollHeight += 200));
  assert.deepEqual(heard, [false]);
  grow();
  assert.equal(left(), 220);
});

test("where the browser undoes a step up, the reader's way down alone begins it again", () => {
  const { scroller, grow, left } = followed();
  scroller.heard.wheel({ deltaY: -5 });
  scroller.scrollTop -= 5;
  grow();
  scroller.scrollTop = scroller.scrollHeight;
  grow();
  assert.equal(left(), 20);
  scroller.heard.wheel({ deltaY: 5 });
  scroller.scrollTop += 5;
  grow();
  assert.equal(left(), 0);
});

test("a reader who has left the end has a button that leads back", () => {
  const scroller = new Scroller();
  scroller.focus = () => (scroller.focused = true);
  const following = new WayBack(scroller);
  following.toEnd();
  assert.equal(following.element.attributes.hidden, "");
  scroller.heard.wheel({ deltaY: -1 });
  scroller.scrollTop -= 50;
  scroller.heard.scroll();
  assert.equal(following.element.hidden, false);
  following.element.childNodes[0].click();
  assert.equal(following.element.hidden, true);
  assert.equal(scroller.scrollTop, 400);
  assert.ok(scroller.focused);
  following.during(() => (scroller.scrollHeight += 20));
  assert.equal(scroller.scrollTop, 420);
});

test("where its place has another size, the end stays in sight for who is there; what is not shown has no end", () => {
  let resize;
  globalThis.ResizeObserver = class {
    constructor(changed) {
      resize = changed;
    }
    observe() {}
  };
  try {
    let held = false;
    const { scroller, following, grow, left } = followed(() => held);
    const narrower = () => ((scroller.scrollHeight += 50), resize());
    narrower();
    assert.equal(left(), 0);
    scroller.scrollHeight += 50;
    scroller.heard.load();
    assert.equal(left(), 0);
    held = true;
    narrower();
    assert.equal(left(), 50);
    held = false;
    scroller.scrollTop -= 200;
    scroller.heard.scroll();
    Object.assign(scroller, { clientHeight: 0, scrollHeight: 0 });
    resize();
    grow();
    assert.equal(following.follows, false);
    Object.assign(scroller, { clientHeight: 100, scrollHeight: 900, scrollTop: 0 });
    grow();
    resize();
    assert.deepEqual([following.follows, scroller.scrollTop], [false, 300]);
  } finally {
    delete globalThis.ResizeObserver;
  }
});
