import assert from "node:assert/strict";
import { test } from "node:test";
import "./page.js";
import { Senses } from "../src/senses.js";

/** What is said of an image, and which files have buttons, where a server tells this of its model. */
async function told(state) {
  const offered = [];
  const senses = new Senses(() => ({ offer: (media) => offered.push(media) }));
  await senses.open({ model: async () => state });
  return [await senses.refusal("image"), offered.at(-1)];
}

test("an image is refused where it is known that the model takes none", async () => {
  assert.deepEqual(await told({ state: "ready", name: "small", model: { media: [] } }), ["small takes text only: images need a model that sees", []]);
  assert.deepEqual(await told({ state: "ready", name: "ears", model: { media: ["audio"] } }), ["ears takes text and sounds: images need a model that sees", ["audio"]]);
  assert.deepEqual(await told({ state: "ready", name: "eyes", model: { media: ["image"] } }), ["", ["image"]]);
});

test("the buttons follow a model that is loaded later, and stay while none is", async () => {
  const offered = [];
  let state = { state: "ready", name: "small", model: { media: [] } };
  const senses = new Senses(() => ({ offer: (media) => offered.push(media) }));
  await senses.open({ model: async () => state });
  state = { state: "ready", name: "eyes", model: { media: ["image"] } };
  assert.equal(await senses.renew(), "eyes");
  state = { state: "stopped", name: "eyes", model: null };
  assert.equal(await senses.renew(), "eyes");
  assert.deepEqual(offered, [[], ["image"]]);
});

test("an image goes to a model of which nothing is known, as one that is not loaded or that another server has", async () => {
  assert.deepEqual(await told({ state: "stopped", name: "small", model: null }), ["", []]);
  assert.deepEqual(await told({ state: "ready", name: "elsewhere", model: null }), ["", []]);
});
