import assert from "node:assert/strict";
import { test } from "node:test";
import "./page.js";
import { Recorder } from "../src/recorder.js";

/** A recorder whose button has been pressed, on a page where `MediaRecorder` is this class, and the microphone's track. */
async function pressed(context, recorder) {
  const track = { on: true, stop: () => (track.on = false) };
  const microphone = { getUserMedia: async () => ({ getTracks: () => [track] }) };
  const before = Object.getOwnPropertyDescriptor(globalThis, "navigator");
  Object.defineProperty(globalThis, "navigator", { value: { mediaDevices: microphone }, configurable: true });
  globalThis.MediaRecorder = recorder;
  context.after(() => {
    delete globalThis.MediaRecorder;
    before ? Object.defineProperty(globalThis, "navigator", before) : delete globalThis.navigator;
  });
  const said = [];
  const own = new Recorder({ say: (words) => said.push(words), take: () => {}, allowed: async () => "" });
  own.element.childNodes[0].click();
  await new Promise(setImmediate);
  return { own, track, said };
}

function refuse() {
  throw new Error("no codec");
}

test("a microphone that cannot be recorded is let go of", async (context) => {
  const recorders = [
    class {
      constructor() {
        refuse();
      }
    },
    class {
      start() {
        refuse();
      }
    },
  ];
  for (const recorder of recorders) {
    const { own, track, said } = await pressed(context, recorder);
    assert.equal(said.at(-1), "The microphone cannot be used: no codec");
    assert.deepEqual([track.on, own.running], [false, false]);
  }
});

test("closing lets go of the microphone", async (context) => {
  const { own, track, said } = await pressed(context, class { start() {} });
  assert.deepEqual([said.at(-1), track.on, own.running], ["Recording", true, true]);
  own.close();
  assert.deepEqual([track.on, own.running], [false, false]);
});
