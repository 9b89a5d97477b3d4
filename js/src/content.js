// A turn's content: text, or a list of OpenAI's parts with images, sounds and videos among them. Knows nothing of the page.

const WORDS = { image_url: "image", audio_url: "sound", input_audio: "sound", video_url: "video" };
/** Only data URLs are shown: nothing that a text or a message refers to is ever fetched. */
const OWN_IMAGE = /^data:image\/(png|jpeg|webp|gif|bmp);base64,[A-Za-z0-9+/]+=*$/;
const OWN_VIDEO = /^data:video\/(mp4|webm);base64,[A-Za-z0-9+/]+=*$/;
/** The beginning of a video's data URL that holds frames as images. */
const FRAMES = /^data:video\/(jpeg|png|webp);base64,/;
const SHOWN_FRAMES = 4;
const OWN_SOUND = /^data:audio\/(wav|mpeg|flac|ogg);base64,[A-Za-z0-9+/]+=*$/;

/** Content of images and sounds with the text after them; text alone stays a string. */
export function contentOf(text, media = []) {
  if (!media.length) return text;
  return [...media, ...(text ? [{ type: "text", text }] : [])];
}

export function textOf(content) {
  return typeof content === "string" ? content : content.filter(({ type }) => type === "text").map(({ text }) => text ?? "").join("");
}

/** The parts other than text. */
export function mediaOf(content) {
  return typeof content === "string" ? [] : content.filter(({ type }) => type !== "text");
}

/** The data URL of an image part, else null. */
export function imageUrl({ image_url: given }) {
  return own(given, OWN_IMAGE);
}

/** The data URL of a sound part, else null. */
export function soundUrl({ audio_url: given, input_audio: named }) {
  if (!named) return own(given, OWN_SOUND);
  return own(`data:audio/${named.format === "mp3" ? "mpeg" : named.format};base64,${named.data}`, OWN_SOUND);
}

/** The data URL of a video part that holds a video file, else null. */
export function videoUrl({ video_url: given }) {
  return own(given, OWN_VIDEO);
}

/** Data URLs of some frames of a video part that holds images, else null. */
export function frameUrls({ video_url: given }) {
  const [head, ...frames] = own(given, FRAMES)?.split(",") ?? [];
  const count = Math.min(SHOWN_FRAMES, frames.length);
  const step = (frames.length - 1) / Math.max(1, count - 1);
  const urls = Array.from({ length: count }, (_, i) => `${head.replace("video", "image")},${frames[Math.round(i * step)]}`);
  return count && urls.every((url) => OWN_IMAGE.test(url)) ? urls : null;
}

function own(given, form) {
  const url = typeof given === "string" ? given : given?.url;
  return typeof url === "string" && form.test(url) ? url : null;
}

/** The words in place of a medium that cannot be shown. */
export function nameOf({ type, ...given }) {
  const name = WORDS[type] ?? "file";
  return given[type] ? name : `${name}, not kept`;
}

export function same(one, other) {
  return one === other || (typeof one !== "string" && typeof other !== "string" && JSON.stringify(one) === JSON.stringify(other));
}

/** Content that can be sent to a model: words in place of media that were not kept. */
export function sendable(content) {
  if (typeof content === "string") return content;
  const parts = content.map((part) => (part.type === "text" || part[part.type] ? part : { type: "text", text: `[${nameOf(part)}]` }));
  return parts.every(({ type }) => type === "text") ? textOf(parts) : parts;
}

/** The content without the files' data, where there is little space. */
export function lean(content) {
  return typeof content === "string" ? content : content.map((part) => (part.type === "text" ? part : { type: part.type }));
}

/** Turns in at most `most` characters of JSON: without their files if need be, null if that is not enough. */
export function fitting(turns, most) {
  const lighter = turns.map((turn) => ({ ...turn, content: lean(turn.content) }));
  return [turns, lighter].find((list) => JSON.stringify(list).length <= most) ?? null;
}

/** A branch's system prompt and its newest turns that fit, beginning at a question; null if not even the last fits. */
export function newest(turns, most) {
  const light = turns.map((turn) => ({ ...turn, content: lean(turn.content) }));
  const system = light.filter(({ role }) => role === "system");
  const others = light.slice(system.length);
  let left = most - JSON.stringify(system).length;
  let from = others.length;
  while (from && (left -= JSON.stringify(others[from - 1]).length + 1) >= 0) from -= 1;
  while (from < others.length && others[from].role !== "user") from += 1;
  if (from === others.length) return null;
  return [...system, ...others.slice(from)].map((turn, i) => ({ ...turn, parent: i ? i - 1 : null }));
}
