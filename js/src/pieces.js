// Finds which part of a text each token wrote: from the token's start, which the server gives in whole characters
// (`offset`), to the next token's start. So a character that several tokens share belongs to the one that completes it.
// Text from a server that sends no tokens has pieces without a token.

const BROKEN = "\ufffd";

/** Whether a token is, or may be, part of a character. */
export const isPart = ({ text }) => text.includes(BROKEN);

export class Pieces {
  #characters = [];
  #read = 0;
  #waiting = [];
  #first = 0; // the place of the first that waits still: to shift a long list takes as long as it is
  #told = false;

  /** Add text and tokens; returns the pieces that are certain now, as [token, text]. A final stop token has no text. */
  add(text, tokens) {
    this.#told ||= tokens.length > 0;
    const found = this.#told || !text ? [] : this.#rest(); // its tokens would have come with this text at the latest
    for (const character of text) this.#characters.push(character);
    for (const token of tokens) this.#waiting.push(token);
    found.push(...this.#lead());
    while (this.#isClear()) found.push(this.#next());
    return found;
  }

  /** The last pieces, at the end: the rest of the text belongs to the last token. */
  flush() {
    const found = this.#lead();
    while (this.#first < this.#waiting.length) found.push(this.#next());
    return [...found, ...this.#rest()];
  }

  /** The remaining text, as a piece without a token. */
  #rest() {
    const piece = this.#take(Infinity);
    return piece ? [[null, piece]] : [];
  }

  /** The text before the first waiting token: it belongs to tokens that were not sent here. */
  #lead() {
    const start = this.#waiting[this.#first]?.offset ?? 0;
    return this.#read < start && start <= this.#characters.length ? [[null, this.#take(start)]] : [];
  }

  /** Whether the text of the first of the waiting tokens has arrived, and the beginning of the next one's. */
  #isClear() {
    const next = this.#waiting[this.#first + 1];
    return this.#end() + (next && !isPart(next) ? 1 : 0) <= this.#characters.length;
  }

  #next() {
    const piece = this.#take(this.#end());
    return [this.#waiting[this.#first++], piece];
  }

  /** Where the first waiting token ends: where the next one begins, or else where its own text has just arrived. */
  #end() {
    const [token, next] = [this.#waiting[this.#first], this.#waiting[this.#first + 1]];
    if (next) return this.#start(next);
    const arrived = this.#characters.slice(this.#read).join("");
    return token?.text && arrived.endsWith(token.text) && !isPart(token) ? this.#characters.length : Infinity;
  }

  /** Where a token starts: after replacement characters, which `offset` does not count as whole characters. */
  #start(token) {
    let start = Math.max(this.#read, token.offset ?? 0);
    if (!isPart(token)) while (this.#characters[start] === BROKEN) start += 1;
    return start;
  }

  #take(end) {
    const piece = this.#characters.slice(this.#read, end).join("");
    this.#read = Math.min(end, this.#characters.length);
    return piece;
  }
}
