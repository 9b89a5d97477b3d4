// Which part of a text each of its tokens wrote. A token's own text may lack the space before it (sentencepiece), and
// tokens that are parts of a character have none; so tokens are looked for in the text, one after the other.

const BROKEN = "\ufffd";
const REACH = 4;

export class Pieces {
  #text = "";
  #read = 0;
  #waiting = [];

  /** The pieces that have become clear, as [token, text]. A token that ends the answer has no text in it. */
  add(text, tokens) {
    this.#text += text;
    this.#waiting.push(...tokens);
    const found = [];
    for (;;) {
      const clear = this.#waiting.findIndex(({ text: own }) => own && !own.includes(BROKEN));
      const piece = clear < 0 ? null : this.#find(this.#waiting[clear].text, clear * REACH);
      if (!piece) return found;
      const broken = this.#waiting.splice(0, clear);
      broken.forEach((token, i) => found.push([token, i === clear - 1 ? this.#take(piece.start) : ""]));
      found.push([this.#waiting.shift(), this.#take(piece.end)]);
    }
  }

  /** At the end: what is left of the text belongs to the first token that is left. */
  flush() {
    return this.#waiting.splice(0).map((token) => [token, this.#take(this.#text.length)]);
  }

  /** Where `own` stands, at most `distance` characters on, with the space before it. */
  #find(own, distance) {
    for (let start = this.#read; start <= this.#read + distance; start += 1) {
      for (const text of [own, ` ${own}`]) {
        if (this.#text.startsWith(text, start)) return { start, end: start + text.length };
      }
    }
    return null;
  }

  #take(end) {
    const piece = this.#text.slice(this.#read, end);
    this.#read = end;
    return piece;
  }
}
