// As much of a page as the panel's pure parts touch: elements that remember what was put into them.

class Text {
  constructor(text) {
    this.text = text;
  }
  get textContent() {
    return this.text;
  }
  get length() {
    return this.text.length;
  }
  appendData(more) {
    this.text += more;
  }
  toString() {
    return this.text.replaceAll("&", "&amp;").replaceAll("<", "&lt;");
  }
}

class Element {
  constructor(tag) {
    this.tag = tag;
    this.attributes = {};
    this.childNodes = [];
    this.dataset = {};
    this.listeners = {};
    this.classList = { add() {}, remove() {}, toggle() {} };
    this.style = { setProperty: (name, value) => (this.style[name] = value) };
  }
  setAttribute(name, value) {
    this.attributes[name] = String(value);
  }
  removeAttribute(name) {
    delete this.attributes[name];
  }
  addEventListener(type, listener) {
    this.listeners[type] = listener;
  }
  closest() {
    return null;
  }
  getRootNode() {
    return document;
  }
  matches(selector) {
    return selector === `.${this.attributes.class}`;
  }
  querySelector(tag) {
    return [...this.elements()].find((element) => element.tag === tag) ?? null;
  }
  contains() {
    return false;
  }
  focus() {}
  select() {}
  after(node) {
    node.remove = () => {};
  }
  dispatchEvent({ type }) {
    this.listeners[type]?.();
  }
  get children() {
    return this.childNodes;
  }
  get firstChild() {
    return this.childNodes[0];
  }
  get parentNode() {
    return this.parent;
  }
  get lastChild() {
    return this.childNodes.at(-1);
  }
  insertBefore(node, before) {
    this.append(node);
    this.childNodes.splice(before ? this.childNodes.indexOf(before) : this.childNodes.length, 0, this.childNodes.pop());
  }
  click() {
    this.listeners.click();
  }
  append(...children) {
    for (const child of children) {
      const node = typeof child === "string" ? new Text(child) : child;
      node.remove?.();
      node.remove = () => this.childNodes.includes(node) && this.childNodes.splice(this.childNodes.indexOf(node), 1);
      if (node instanceof Element) node.parent = this;
      this.childNodes.push(node);
    }
  }
  replaceChildren(...children) {
    this.childNodes = [];
    this.append(...children);
  }
  get textContent() {
    return this.childNodes.map((child) => child.textContent).join("");
  }
  set textContent(text) {
    this.replaceChildren(text);
  }
  *elements() {
    yield this;
    for (const child of this.childNodes) if (child instanceof Element) yield* child.elements();
  }
  toString() {
    const attributes = Object.entries(this.attributes).map(([name, value]) => ` ${name}="${value}"`);
    return `<${this.tag}${attributes.join("")}>${this.childNodes.join("")}</${this.tag}>`;
  }
}

globalThis.requestAnimationFrame = (paint) => setTimeout(paint, 0);
globalThis.cancelAnimationFrame = clearTimeout;
globalThis.document = {
  hidden: false,
  createElement: (tag) => new Element(tag),
  createElementNS: (_, tag) => new Element(tag),
  createTextNode: (text) => new Text(text),
};
