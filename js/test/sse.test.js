import assert from "node:assert/strict";
import { test } from "node:test";
import { SseDecoder } from "../src/sse.js";

const STREAM = ': keep-alive\n\nevent: delta\nid: r:1\ndata: {"a":1}\n\ndata: one\r\ndata:two\r\n\r\nevent: empty\n\ndata: last\n\n';
const EVENTS = [
  { event: "delta", data: '{"a":1}' },
  { event: "message", data: "one\ntwo" },
  { event: "message", data: "last" },
];

test("events are the same wherever the stream is cut", () => {
  for (let cut = 0; cut <= STREAM.length; cut += 1) {
    const decoder = new SseDecoder();
    assert.deepEqual([...decoder.feed(STREAM.slice(0, cut)), ...decoder.feed(STREAM.slice(cut))], EVENTS);
  }
});

test("an event that is not whole is held back", () => {
  assert.deepEqual(new SseDecoder().feed("data: half"), []);
});

test("an event that comes in many pieces takes time in proportion to its length", () => {
  const decoder = new SseDecoder();
  const piece = "x".repeat(16_384);
  const start = performance.now();
  decoder.feed("data: ");
  for (let i = 0; i < 1000; i += 1) assert.deepEqual(decoder.feed(piece), []);
  assert.equal(decoder.feed("\n\n")[0].data.length, 16_384_000);
  assert.ok(performance.now() - start < 2000);
});
