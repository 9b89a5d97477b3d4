// A sound file prepared for sending, in a format that the server decodes, at the rate that models use; and its player.

import { dataUrl, h } from "./dom.js";
import { clock, mono, soundType, wav } from "./wav.js";

/** The sample rate that models use, in Hz. */
const RATE = 16_000;
/** The server's own limits. */
const MAX_FILE_BYTES = 25 * 2 ** 20;
export const MAX_SECONDS = 600;
/** Up to this size a file that the server decodes is sent unchanged. */
const MAX_BYTES = 1_000_000;

/** The sound as a data URL. Throws if the browser cannot read it, and a RangeError with words if it is too large. */
export async function smallSound(file) {
  if (file.size > MAX_FILE_BYTES) throw new RangeError(`has ${Math.round(file.size / 2 ** 20)} MB; at most ${MAX_FILE_BYTES / 2 ** 20} MB can be sent`);
  const bytes = new Uint8Array(await file.arrayBuffer());
  const type = soundType(bytes);
  const sound = await new OfflineAudioContext(1, 1, RATE).decodeAudioData(bytes.slice().buffer); // which takes it away
  if (sound.duration > MAX_SECONDS) throw new RangeError(`lasts ${clock(sound.duration)}; at most ${clock(MAX_SECONDS)} minutes can be sent`);
  if (!sound.length) throw new RangeError("has no sound in it");
  const made = wav(mono(Array.from({ length: sound.numberOfChannels }, (_, i) => sound.getChannelData(i))), RATE);
  const fits = type && bytes.length <= Math.max(MAX_BYTES, made.length);
  return fits ? dataUrl(new Blob([bytes], { type })) : dataUrl(new Blob([made], { type: "audio/wav" }));
}

/** Plays a data URL; `name` is what screen readers call it. */
export function player(url, name) {
  return h("audio", { controls: true, preload: "metadata", src: url, "aria-label": name, title: name });
}
