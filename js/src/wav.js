// Sound samples, and the bytes of sound files. Knows nothing of the page.

const HEADER_BYTES = 44;

/** The mean of the channels, each a Float32Array. */
export function mono(channels) {
  if (channels.length === 1) return channels[0];
  return channels[0].map((_, i) => channels.reduce((sum, channel) => sum + channel[i], 0) / channels.length);
}

/** A 16-bit WAV file (RIFF, PCM) from samples between -1 and 1. */
export function wav(samples, rate) {
  const bytes = new Uint8Array(HEADER_BYTES + 2 * samples.length);
  const view = new DataView(bytes.buffer);
  const text = (place, letters) => bytes.set(new TextEncoder().encode(letters), place);
  text(0, "RIFF");
  view.setUint32(4, bytes.length - 8, true);
  text(8, "WAVEfmt ");
  view.setUint32(16, 16, true);
  view.setUint16(20, 1, true); // PCM
  view.setUint16(22, 1, true); // channels
  view.setUint32(24, rate, true);
  view.setUint32(28, 2 * rate, true); // bytes a second
  view.setUint16(32, 2, true); // bytes a sample
  view.setUint16(34, 16, true); // bits
  text(36, "data");
  view.setUint32(40, 2 * samples.length, true);
  samples.forEach((sample, i) => view.setInt16(HEADER_BYTES + 2 * i, Math.round(Math.max(-1, Math.min(1, sample)) * 32_767), true));
  return bytes;
}

/** The type of a sound file that the server decodes, by its first bytes; "" for any other file. */
export function soundType(bytes) {
  const start = String.fromCharCode(...bytes.slice(0, 12));
  if (start.startsWith("RIFF") && start.endsWith("WAVE")) return "audio/wav";
  if (start.startsWith("fLaC")) return "audio/flac";
  if (start.startsWith("OggS")) return "audio/ogg";
  const frame = bytes[0] === 0xff && (bytes[1] & 0xe6) === 0xe2; // MPEG's sync word, layer III
  return start.startsWith("ID3") || frame ? "audio/mpeg" : "";
}

/** Seconds as minutes: "1:05". */
export function clock(seconds) {
  const whole = Math.floor(seconds);
  return `${Math.floor(whole / 60)}:${String(whole % 60).padStart(2, "0")}`;
}
