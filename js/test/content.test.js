import assert from "node:assert/strict";
import { test } from "node:test";
import { contentOf, imageUrl, lean, mediaOf, nameOf, same, sendable, textOf } from "../src/content.js";
import { pythonCall } from "../src/python.js";
import { Tree } from "../src/tree.js";

const image = (url = "data:image/png;base64,aGk=") => ({ type: "image_url", image_url: { url } });

test("text alone stays text, and images come before it", () => {
  assert.equal(contentOf("hi"), "hi");
  const content = contentOf("hi", [image()]);
  assert.deepEqual(content, [image(), { type: "text", text: "hi" }]);
  assert.deepEqual(contentOf("", [image()]), [image()]);
  assert.equal(textOf(content), "hi");
  assert.deepEqual(mediaOf(content), [image()]);
  assert.deepEqual([textOf("a"), mediaOf("a")], ["a", []]);
});

test("only images that are in the page already are shown", () => {
  assert.equal(imageUrl(image()), "data:image/png;base64,aGk=");
  const others = ["https://evil.test/a.png", "data:image/svg+xml;base64,aGk=", "data:text/html;base64,aGk=", "javascript:alert(1)", "data:image/png;base64,a\" onerror=x", "", undefined, 5];
  for (const url of others) assert.equal(imageUrl(image(url)), url === undefined ? imageUrl(image()) : null, String(url));
  assert.equal(imageUrl({ type: "image_url" }), null);
});

test("what is not kept is named, and said to the model in words", () => {
  const content = [{ type: "image_url" }, { type: "text", text: "what?" }];
  assert.equal(nameOf(content[0]), "image, not kept");
  assert.equal(nameOf({ type: "input_audio", input_audio: { data: "" } }), "sound");
  assert.equal(sendable(content), "[image, not kept]what?");
  assert.deepEqual(sendable([image(), ...content])[0], image());
  assert.deepEqual(lean([image(), content[1]]), content);
});

test("the same image in the same question is the same turn, another is another", () => {
  const ask = (url) => [{ role: "user", content: contentOf("what?", [image(url)]) }];
  assert.ok(same(ask("a")[0].content, ask("a")[0].content));
  const tree = new Tree();
  tree.add(ask("data:image/png;base64,aaaa"), "r1").content = "one";
  tree.add(ask("data:image/png;base64,aaaa"), "r2").content = "two";
  tree.add(ask("data:image/png;base64,bbbb"), "r3").content = "three";
  assert.equal(tree.versions(tree.path()[0]).length, 2);
  assert.deepEqual(Tree.from(tree.list()).list(), tree.list());
});

test("a call in Python has words for the images, not their bytes", () => {
  const call = pythonCall({ messages: [{ role: "user", content: contentOf("what?", [image()]) }], params: {} });
  assert.equal(call, '# images: files, PIL images, arrays or figures, 1 in this conversation\nimport nbgen\n\nresult = nbgen.generate(\n    "what?",\n    images=[...],\n)\n');
});
