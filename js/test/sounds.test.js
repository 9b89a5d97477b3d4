import assert from "node:assert/strict";
import { test } from "node:test";
import "./page.js";
import { Attachments, kindOf } from "../src/attachments.js";
import { clock, mono, soundType, wav } from "../src/wav.js";

const bytes = (...parts) => new Uint8Array(parts.flatMap((part) => (typeof part === "string" ? [...new TextEncoder().encode(part)] : part)));

test("samples become a WAV file of 16 bits", () => {
  const file = wav(new Float32Array([0, 1, -1, 0.5, 7, -7]), 16_000);
  const view = new DataView(file.buffer);
  const text = (from, to) => new TextDecoder().decode(file.slice(from, to));
  assert.deepEqual([text(0, 4), text(8, 16), text(36, 40)], ["RIFF", "WAVEfmt ", "data"]);
  assert.equal(view.getUint32(4, true), file.length - 8);
  assert.deepEqual([20, 22, 32, 34].map((place) => view.getUint16(place, true)), [1, 1, 2, 16]);
  assert.deepEqual([24, 28, 40].map((place) => view.getUint32(place, true)), [16_000, 32_000, 12]);
  const samples = Array.from({ length: 6 }, (_, i) => view.getInt16(44 + 2 * i, true));
  assert.deepEqual(samples, [0, 32_767, -32_767, 16_384, 32_767, -32_767]);
  assert.equal(soundType(file), "audio/wav");
});

test("channels are heard as their mean", () => {
  const one = new Float32Array([1, 2]);
  assert.equal(mono([one]), one);
  assert.deepEqual([...mono([one, new Float32Array([3, 0])])], [2, 1]);
});

test("a file is known by how it begins, whatever it is called", () => {
  assert.equal(soundType(bytes("fLaC", [0])), "audio/flac");
  assert.equal(soundType(bytes("OggS", [0])), "audio/ogg");
  assert.equal(soundType(bytes("ID3", [4])), "audio/mpeg");
  for (const second of [0xfb, 0xfa, 0xf3, 0xf2, 0xe3]) assert.equal(soundType(bytes([0xff, second])), "audio/mpeg");
  const others = [bytes("RIFF", [1, 2, 3, 4], "WEBP"), bytes([0xff, 0xf1]), bytes([0x1a, 0x45, 0xdf, 0xa3]), bytes("ftyp"), bytes()];
  for (const other of others) assert.equal(soundType(other), "");
});

test("seconds read as minutes", () => {
  assert.deepEqual([0, 5.9, 65, 600].map(clock), ["0:00", "0:05", "1:05", "10:00"]);
});

test("what a file is", () => {
  const kinds = ["image/png", "audio/x-m4a", "audio/webm;codecs=opus", "video/webm", "text/plain", ""].map((type) => kindOf({ type }));
  assert.deepEqual(kinds, ["image", "audio", "audio", "audio", null, null]);
  assert.equal(kindOf({ type: "video/mp2t", name: "app.ts" }), null);
});

test("a file that another panel is still reading is none of the files that were handed on", () => {
  const files = new Attachments({});
  const given = [{ kind: "image", name: "a", url: "data:image/png;base64,AA==" }];
  files.given = given;
  given.push({ ...given[0], name: "b" });
  assert.equal(files.parts.length, 1);
});
