// The last values of a number that changes, and the line they make.

export const POINTS = 90;

export class Series {
  #values = [];

  add(value) {
    this.#values.push(value);
    if (this.#values.length > POINTS) this.#values.shift();
  }

  get last() {
    return this.#values.at(-1) ?? 0;
  }

  /** Points of an SVG polyline in a box of `width` x `height`; the newest value is at the right edge. */
  line(width, height) {
    const top = Math.max(...this.#values);
    const step = width / (POINTS - 1);
    const first = width - (this.#values.length - 1) * step;
    const y = (value) => height - (top > 0 ? Math.min(value / top, 1) : 0) * (height - 2) - 1;
    return this.#values.map((value, i) => `${(first + i * step).toFixed(1)},${y(value).toFixed(1)}`).join(" ");
  }
}

/** Tokens per second between two readings of the engine's count. If the count has fallen, the engine is a new one. */
export class Rate {
  #count = null;
  #time = 0;

  next(count, seconds) {
    const before = this.#count;
    const passed = seconds - this.#time;
    this.#count = count;
    this.#time = seconds;
    return before === null || count < before || passed <= 0 ? 0 : (count - before) / passed;
  }
}

/** Bytes in words: 512 MiB, 3.4 GiB. */
export function bytes(number) {
  const gib = number / 2 ** 30;
  return gib >= 1 ? `${gib.toFixed(1)} GiB` : `${Math.round(number / 2 ** 20)} MiB`;
}
