// Elements made without markup: text only enters the page as text, never as HTML.

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

/** The focused element in an element's tree, maybe a shadow tree; also while another window is in front. */
export function focusOf(element) {
  return element.getRootNode().activeElement ?? null;
}

/** Copy text to the clipboard, also if the page is not on https. Returns whether the browser has done so. */
async function copyText(text, button) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    const area = h("textarea", { readonly: true, "aria-hidden": "true", class: "nbgen-offscreen" });
    const focused = focusOf(button);
    area.value = text;
    button.after(area);
    area.select();
    const copied = document.execCommand("copy");
    area.remove();
    focused?.focus();
    return copied;
  }
}

/** An event for something that was done; its detail is the words for a screen reader. */
export const DONE = "nbgen-done";

/** A small button that copies what `source` returns and says so for a moment. */
export function copyButton(label, source, words = "Copy") {
  const button = h("button", { type: "button", class: "nbgen-quiet", "aria-label": label }, words);
  button.addEventListener("click", async () => {
    const said = (await copyText(source(), button)) ? "Copied" : "Not copied";
    button.textContent = said;
    button.dispatchEvent(new CustomEvent(DONE, { bubbles: true, detail: said }));
    setTimeout(() => (button.textContent = words), 1500);
  });
  return button;
}

const wide = globalThis.ResizeObserver && new ResizeObserver((changes) => changes.forEach(({ target }) => reach(target)));

/** Make an element focusable while it is too wide for its place, so that keys can scroll it sideways. */
export function reach(element) {
  if (element.scrollWidth > element.clientWidth) element.setAttribute("tabindex", "0");
  else if (element !== focusOf(element)) element.removeAttribute("tabindex");
}

/** An element that can be scrolled sideways where it is too wide; `name` is its label for screen readers. */
export function scroller(name, tag, attributes, ...children) {
  const element = h(tag, { role: "group", "aria-label": name, ...attributes }, ...children);
  wide?.observe(element);
  return element;
}

/** Whether a key is part of composing a character, as in Japanese; for the last key, Safari tells by the code alone. */
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

/** A random id, which nothing else has. */
export function newId() {
  const bytes = crypto.getRandomValues(new Uint8Array(12));
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}
