// An image file prepared for sending: no larger than the sizes that models look at.

import { dataUrl, h } from "./dom.js";

const MAX_SIDE = 1280;
const MAX_BYTES = 1_000_000;
/** Types of files that are sent unchanged if they are small. */
const USUAL = ["image/png", "image/jpeg", "image/webp"];

/** The image as a data URL. Throws where the browser cannot read it. */
export async function smallImage(file) {
  const bitmap = await createImageBitmap(file);
  const scale = Math.min(1, MAX_SIDE / Math.max(bitmap.width, bitmap.height));
  if (scale === 1 && file.size <= MAX_BYTES && USUAL.includes(file.type)) return dataUrl(file);
  const canvas = h("canvas", { width: Math.max(1, Math.round(bitmap.width * scale)), height: Math.max(1, Math.round(bitmap.height * scale)) });
  const context = canvas.getContext("2d");
  context.fillStyle = "white";
  context.fillRect(0, 0, canvas.width, canvas.height);
  context.drawImage(bitmap, 0, 0, canvas.width, canvas.height);
  bitmap.close();
  return canvas.toDataURL("image/jpeg", 0.9);
}
