import assert from "node:assert/strict";
import test from "node:test";

import { bytes, POINTS, Rate, Series } from "../src/series.js";

test("a series keeps its newest values and draws them from the right edge", () => {
  const series = new Series();
  for (let i = 1; i <= POINTS + 5; i++) series.add(i);
  assert.equal(series.last, POINTS + 5);
  const points = series.line(100, 50).split(" ");
  assert.equal(points.length, POINTS);
  assert.ok(points[0].startsWith("0.0,"));
  assert.equal(points.at(-1), "100.0,1.0");
});

test("a flat series lies on the ground", () => {
  const series = new Series();
  series.add(0);
  assert.equal(series.line(100, 50), "100.0,49.0");
});

test("a rate needs two looks, and a new engine begins anew", () => {
  const rate = new Rate();
  assert.equal(rate.next(100, 1), 0);
  assert.equal(rate.next(300, 3), 100);
  assert.equal(rate.next(10, 4), 0);
});

test("bytes are said in the unit that fits", () => {
  assert.equal(bytes(512 * 2 ** 20), "512 MiB");
  assert.equal(bytes(3.44 * 2 ** 30), "3.4 GiB");
});
