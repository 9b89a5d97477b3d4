import assert from "node:assert/strict";
import { test } from "node:test";
import "./page.js";
import { Attachments } from "../src/attachments.js";

/** On a page that has read an image's data at once, and its size once `read` tells so. */
function reading(context) {
  const files = [];
  globalThis.createImageBitmap = () => new Promise((read) => files.push(() => read({ width: 1, height: 1 })));
  globalThis.FileReader = class {
    readAsDataURL({ name }) {
      this.result = `data:image/png;base64,${name}`;
      queueMicrotask(() => this.onload());
    }
  };
  context.after(() => {
    delete globalThis.createImageBitmap;
    delete globalThis.FileReader;
  });
  return { read: async () => { await new Promise(setImmediate); files.shift()(); } };
}

test("a file that is still being read while another is removed is not lost", async (context) => {
  const { read } = reading(context);
  const said = [];
  const files = new Attachments({ say: (words) => said.push(words), done: () => {}, write: () => {}, allowed: async () => "" });
  const add = (name) => files.add([new File([], name, { type: "image/png" })]);
  const first = add("first");
  await read();
  await first;
  const second = add("second");
  await new Promise(setImmediate);
  files.list.childNodes[0].childNodes[1].click();
  await read();
  await second;
  assert.deepEqual(files.given.map(({ name }) => name), ["second"]);
  assert.equal(said.at(-1), "second added, 1 image");
});
