// Maths between $…$, $$…$$, \(…\), \[…\] and \begin{…}…\end{…}: found before Markdown is, never inside code, and shown
// as MathML that is built from temml's tree with allowed elements only.

import temml from "temml";
import { h, scroller } from "./dom.js";

const MATHML = "http://www.w3.org/1998/Math/MathML";
const TAGS = new Set(
  "math mrow mi mn mo ms mtext mspace mfrac msqrt mroot mstyle merror mpadded mphantom menclose msub msup msubsup munder mover munderover mtable mtr mtd mmultiscripts mprescripts".split(" "),
);
const ATTRIBUTES = new Set(
  "display displaystyle scriptlevel mathvariant fence form stretchy symmetric movablelimits accent accentunder separator largeop lspace rspace minsize maxsize width height depth voffset linethickness notation columnalign rowspacing columnspacing columnlines rowlines rowspan columnspan mathbackground mathcolor".split(" "),
);
const STYLES = { color: "color", paddingLeft: "padding-left", paddingRight: "padding-right", mathDepth: "math-depth" };
const PLAIN = /^[#\w.,%() +-]*$/;
const OPTIONS = { trust: false, throwOnError: true, maxExpand: 200, maxSize: [20, 20] };
const MAX_LENGTH = 5000;

/** An environment up to its end, which stands before any other formula, code, or empty line. */
const BEGUN = String.raw`\\begin\{(?<name>[A-Za-z]+\*?)\}(?:(?!\n[ \t]*\n|\\(?:begin|end)\{\k<name>\})[^$\x60]){0,5000}`;
const ENVIRONMENT = String.raw`(${BEGUN}\\end\{\k<name>\})`;

const INLINE = [
  [/^\\\(([\s\S]+?)\\\)/, false],
  [/^\\\[([\s\S]+?)\\\]/, true],
  [/^\$\$([^$]+?)\$\$/, true],
  [new RegExp(`^${ENVIRONMENT}`), true],
  [/^\$(?!\s)((?:\\[^\n]|[^$\\\n])+?)(?<!\s)\$(?=(?:st|nd|rd|th|s)?(?!\w))/, false], // no price, no $HOME:$PATH; but the $n$th
];
const BLOCK = [
  /^ {0,3}\$\$([^$]+(?:\$[^$]+)*)\$\$[ \t]*(?:\n|$)/,
  /^ {0,3}\\\[((?:[^\\]|\\[^[\]])+)\\\][ \t]*(?:\n|$)/,
  new RegExp(String.raw`^ {0,3}${ENVIRONMENT}[ \t]*(?:\n|$)`),
];
// A block of maths that is still open takes all that follows, so that blank lines or list marks in it do not end it.
const OPEN = [/^ {0,3}(?:\$\$[ \t]*\n(?:[^$]|\$(?!\$))*|\\\[[ \t]*\n(?:[^\\]|\\(?!\]))*)$/, new RegExp(`^ {0,3}${BEGUN}$`)];
const PARAGRAPH_END = /\n(?: *(\n)| {0,3}(?:\$\$|\\\[|\\begin\{))/g;
const HEADING_END = /\n(?: {0,3}(?:\$\$|\\\[|\\begin\{)|( *\n| {0,3}(?:=+|-+) *(?:\n|$)))/g;

/** marked's options for text that may hold maths. */
export const extensions = {
  startInline: [(text) => text.search(/\$|\\(?:[([]|begin\{)/)],
  inline: [inline],
  startBlock: [startBlock],
  block: [block],
};

/** Where a block of maths begins within the paragraph; text after the paragraph is searched when its turn comes. */
function startBlock(text) {
  return begins(text, PARAGRAPH_END);
}

/** Like startBlock, within a possible heading, which ends with its underline. */
export function startInHeading(text) {
  return begins(text, HEADING_END);
}

function begins(text, end) {
  for (const { index, 1: ended } of text.matchAll(end)) {
    if (ended) break;
    if (block(text.slice(index + 1))) return index + 1;
  }
  return -1;
}

function inline(text) {
  for (const [pattern, display] of INLINE) {
    const found = pattern.exec(text);
    if (found) return { type: "maths", raw: found[0], tex: found[1], display };
  }
}

function block(text) {
  for (const pattern of BLOCK) {
    const found = pattern.exec(text);
    if (found) return { type: "maths", raw: found[0], tex: found[1], display: true };
  }
  return OPEN.some((pattern) => pattern.test(text)) ? { type: "maths", raw: text, tex: null, display: true } : undefined;
}

/** A formula as an element; its source if it cannot be shown. */
export function formula({ raw, tex, display }) {
  if (tex === null || tex.length > MAX_LENGTH) return raw;
  try {
    const tree = temml.__renderToMathMLTree(tex.trim(), { ...OPTIONS, displayMode: display });
    const title = tex.trim();
    const box = display ? scroller("Formula", "div", { class: "nbgen-formula", title }) : h("span", { class: "nbgen-maths", title });
    box.append(...element(tree));
    return box;
  } catch {
    return h("code", { class: "nbgen-tex" }, raw.trim());
  }
}

/** DOM nodes of a node of temml's tree. */
function element(node) {
  if (node.text !== undefined) return [node.text];
  const children = (node.children ?? []).flatMap(element);
  if (!TAGS.has(node.type)) return children;
  const made = document.createElementNS(MATHML, node.type);
  for (const [name, value] of Object.entries(node.attributes ?? {})) {
    if (ATTRIBUTES.has(name) && PLAIN.test(value)) made.setAttribute(name, value);
  }
  for (const [name, value] of Object.entries(node.style ?? {})) {
    if (STYLES[name] && PLAIN.test(value)) made.style.setProperty(STYLES[name], value);
  }
  made.append(...children);
  return [made];
}
