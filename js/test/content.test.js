import assert from "node:assert/strict";
import { test } from "node:test";
import { contentOf, fitting, frameUrls, imageUrl, lean, mediaOf, nameOf, same, sendable, soundUrl, textOf, videoUrl } from "../src/content.js";
import { pythonCall } from "../src/python.js";
import { quoted } from "../src/quoted.js";
import { Tree } from "../src/tree.js";

const image = (url = "data:image/png;base64,aGk=") => ({ type: "image_url", image_url: { url } });

const sound = (url = "data:audio/wav;base64,aGk=") => ({ type: "audio_url", audio_url: { url } });

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

test("only sounds that are in the page already are played", () => {
  assert.equal(soundUrl(sound()), "data:audio/wav;base64,aGk=");
  assert.equal(soundUrl({ type: "input_audio", input_audio: { data: "aGk=", format: "mp3" } }), "data:audio/mpeg;base64,aGk=");
  const others = ["https://evil.test/a.wav", "data:image/png;base64,aGk=", "data:audio/wav;base64,a\" onerror=x", "blob:x", "", 5];
  for (const url of others) assert.equal(soundUrl(sound(url)), null, String(url));
  for (const named of [{ data: "a b", format: "wav" }, { data: "aGk=", format: "wav;x" }, {}]) assert.equal(soundUrl({ type: "input_audio", input_audio: named }), null);
  assert.equal(soundUrl({ type: "audio_url" }), null);
  assert.equal(soundUrl(image()), null);
  const long = `data:audio/wav;base64,${"A".repeat(34_000_000)}`;
  assert.equal(soundUrl(sound(long)), long);
});

test("only videos that are in the page already are played, and of frames some are shown", () => {
  const video = (url) => ({ type: "video_url", video_url: { url } });
  assert.equal(videoUrl(video("data:video/mp4;base64,aGk=")), "data:video/mp4;base64,aGk=");
  const others = ["https://evil.test/a.mp4", "data:video/mp4;base64,a\" onerror=x", "data:video/jpeg;base64,aGk=", "data:text/html;base64,aGk=", "", 5];
  for (const url of others) assert.equal(videoUrl(video(url)), null, String(url));
  const frames = (count) => video(`data:video/jpeg;base64,${Array.from({ length: count }, (_, i) => `AA${i}=`).join(",")}`);
  const shown = (count) => frameUrls(frames(count)).map((url) => url.replace("data:image/jpeg;base64,AA", ""));
  assert.deepEqual([1, 2, 4, 8].map(shown), [["0="], ["0=", "1="], ["0=", "1=", "2=", "3="], ["0=", "2=", "5=", "7="]]);
  for (const url of [...others.filter((url) => !/jpeg/.test(url)), "data:video/jpeg;base64,a\",b"]) assert.equal(frameUrls(video(url)), null, String(url));
  for (const read of [videoUrl, frameUrls]) assert.equal(read({ type: "video_url" }), null);
  assert.match(pythonCall({ messages: [{ role: "user", content: contentOf("what?", [frames(2)]) }], params: {} }), /# videos: .*, 1 in[^]*videos=\[\.\.\.\]/);
});

test("files are left out where there is no room for them", () => {
  const turns = [{ role: "user", content: [sound(), { type: "text", text: "what?" }] }, { role: "assistant", content: "a".repeat(50) }];
  assert.equal(fitting(turns, 1000), turns);
  assert.deepEqual(fitting(turns, 180), [{ role: "user", content: [{ type: "audio_url" }, { type: "text", text: "what?" }] }, turns[1]]);
  assert.equal(fitting(turns, 100), null);
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

test("a call in Python has words for images and sounds, not their bytes", () => {
  const heard = pythonCall({ messages: [{ role: "user", content: contentOf("what?", [sound(), image(), sound()]) }], params: {} });
  assert.match(heard, /^# images: .*, 1 in this conversation\n# audio: files, or pairs of samples and their rate, 2 in this conversation\nimport/);
  assert.match(heard, /    images=\[\.\.\.\],\n    audio=\[\.\.\.\],\n/);
  const call = pythonCall({ messages: [{ role: "user", content: contentOf("what?", [image()]) }], params: {} });
  assert.equal(call, '# images: files, PIL images, arrays or figures, 1 in this conversation\nimport nbgen\n\nresult = nbgen.generate(\n    "what?",\n    images=[...],\n)\n');
});

test("a text file becomes a block of code that nothing in it ends, and runs nothing", async () => {
  const file = (...bytes) => new Blob(bytes);
  assert.equal(await quoted(file("a,b\r\n1,2\n\n"), "data.CSV"), "data.CSV:\n```csv\na,b\n1,2\n```");
  assert.equal(await quoted(file("````\n"), "notes"), "notes:\n`````\n````\n`````");
  for (const [text, name] of [["{{open('x')}}", "a.html"], ["a", "{{open('x')}}"], ["'''+open('x')}}", "{{'''"]]) await assert.rejects(quoted(file(text), name), RangeError);
  await assert.rejects(quoted(file("x".repeat(100_001)), "a.txt"), RangeError);
  for (const bytes of [[0xff], [0x61, 0]]) await assert.rejects(quoted(file(new Uint8Array(bytes)), "a"), TypeError);
});
