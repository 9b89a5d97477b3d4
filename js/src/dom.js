// Elements without markup: text only ever enters the page as text.

/** An element with attributes; children are elements or strings. */
export function h(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === "function") element.addEventListener(name, value);
    else if (value === true) element.setAttribute(name, "");
    else if (value !== false && value != null) element.setAttribute(name, value);
  }
  element.append(...children);
  return element;
}

/** Put text on the clipboard, also where the page is not on https. */
export async function copyText(text) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    const area = h("textarea", { readonly: true, "aria-hidden": "true", class: "nbgen-offscreen" });
    area.value = text;
    document.body.append(area);
    area.select();
    document.execCommand("copy");
    area.remove();
  }
}

/** A small button that copies what `source` returns and says so for a moment. */
export function copyButton(label, source, words = "Copy") {
  const button = h("button", { type: "button", class: "nbgen-quiet", "aria-label": label }, words);
  button.addEventListener("click", async () => {
    await copyText(source());
    button.textContent = "Copied";
    setTimeout(() => (button.textContent = words), 1500);
  });
  return button;
}

/** Whether a key belongs to the writing of a character, as of Japanese; Safari tells the last one by its number alone. */
export function composing({ isComposing, keyCode }) {
  return isComposing || keyCode === 229;
}

/** A file's bytes as a data URL. */
export function dataUrl(file) {
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(reader.result);
    reader.onerror = reject;
    reader.readAsDataURL(file);
  });
}

/** A name nobody else has given. */
export function newId() {
  const bytes = crypto.getRandomValues(new Uint8Array(12));
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}
