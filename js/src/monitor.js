// The monitor: polls the server while it is in view, and draws the server's state.

import { directServer } from "./direct_server.js";
import { h } from "./dom.js";
import { ENDED, isAlone, tell } from "./kernel.js";
import { bytes, Rate, Series } from "./series.js";

const WIDTH = 260;
const HEIGHT = 44;
/** Time after which a request without an answer is given up: a kernel's message may be dropped on the way. */
const LOST_MS = 10_000;
/** Facts of a server of another kind, which tells no more than its model's name. */
const SILENT = "This server tells nothing of its memory, requests and speed.";
const SVG = "http://www.w3.org/2000/svg";

/** A number with its name, a bar for its share of the total, and a line of its past values. */
class Gauge {
  #number = h("span", { class: "nbgen-number" });
  #bar = h("meter", { min: 0, max: 1 });
  #line = document.createElementNS(SVG, "polyline");

  constructor(name, { bar = false, plot = false } = {}) {
    this.element = h("div", { class: "nbgen-gauge" }, h("span", { class: "nbgen-name" }, name), this.#number);
    this.#bar.setAttribute("aria-label", name);
    if (bar) this.element.append(this.#bar);
    if (plot) this.element.append(this.#plot(name));
  }

  show(text, { share, series } = {}) {
    this.#number.textContent = text;
    if (share !== undefined) this.#bar.value = share;
    if (series) this.#line.setAttribute("points", series.line(WIDTH, HEIGHT));
  }

  #plot(name) {
    const svg = document.createElementNS(SVG, "svg");
    svg.setAttribute("viewBox", `0 0 ${WIDTH} ${HEIGHT}`);
    svg.setAttribute("role", "img");
    svg.setAttribute("aria-label", `${name}, the last minutes`);
    svg.append(this.#line);
    return svg;
  }
}

class Monitor {
  #title = h("strong");
  #state = h("span", { class: "nbgen-state", role: "status" });
  #facts = h("div", { class: "nbgen-facts" });
  #error = h("div", { class: "nbgen-alarm", role: "alert", hidden: true });
  #progress = h("progress", { max: 1, hidden: true, "aria-label": "Loading" });
  #rate = new Gauge("Tokens/s", { plot: true });
  #memory = new Gauge("Memory", { bar: true, plot: true });
  #cache = new Gauge("KV cache", { bar: true });
  #requests = new Gauge("Requests");
  #gauges = h("div", { class: "nbgen-gauges" }, ...[this.#rate, this.#memory, this.#cache, this.#requests].map((gauge) => gauge.element));
  #speed = new Rate();
  #speeds = new Series();
  #memories = new Series();
  #refusal = "";

  constructor(actions) {
    this.load = button("Load", actions.load);
    this.unload = button("Unload", actions.unload);
    this.stop = button("Stop all", actions.stop, "End every request of this server, whoever asked");
    allow(this.stop, false);
    const head = h("div", { class: "nbgen-head" }, this.#title, this.#state, this.#progress, this.load, this.unload, this.stop);
    const label = { class: "nbgen-monitor", tabindex: -1, role: "group", "aria-label": "Model server" }; // takes the focus as Frame's does
    this.element = h("div", label, head, this.#facts, this.#gauges, this.#error);
  }

  /** Show the server's report on its model; `seconds` is the time of the request. */
  show(answer, seconds) {
    const alive = ["ready", "loading", "starting", "released"].includes(answer.state);
    const unasked = answer.unasked_seconds ? ` after ${answer.unasked_seconds} s without a request; the next one loads it` : "";
    const words = answer.state === "released" ? "memory released" : answer.state + unasked;
    this.#title.textContent = answer.name ?? "no model";
    if (this.#state.textContent !== words) this.#state.textContent = words;
    if (answer.state !== this.element.dataset.state) this.#refusal = "";
    this.element.dataset.state = answer.state;
    const silent = answer.state === "ready" && answer.model === null; // a server of another kind
    this.#gauges.hidden = silent;
    this.#facts.textContent = silent ? SILENT : alive ? facts(answer.model) : "";
    allow(this.load, !alive || answer.state === "released");
    this.load.textContent = answer.state === "released" ? "Resume" : "Load";
    allow(this.unload, alive && !silent);
    this.#loading(answer.state === "ready" ? null : answer.progress);
    this.fail(answer.error || this.#refusal);
    this.#pulse((alive && answer.status) || {}, seconds);
  }

  fail(words) {
    this.#error.hidden = !words;
    if (this.#error.textContent !== words) this.#error.textContent = words;
  }

  /** Show why a button's request failed. The words stay until a button is pressed or the state changes. */
  refuse(words) {
    this.fail((this.#refusal = words));
  }

  #loading(progress) {
    this.#progress.hidden = !progress;
    if (progress?.total) this.#progress.value = progress.done / progress.total;
    else this.#progress.removeAttribute("value");
    this.#progress.title = progress?.stage ?? "";
  }

  /** Fields at their default of 0 are left out on the wire. */
  #pulse(pulse, seconds) {
    const { memory_used: used = 0, memory_total: total = 0, blocks_total: blocks = 0, blocks_free: free = 0 } = pulse;
    this.#speeds.add(this.#speed.next(pulse.generated_tokens ?? 0, seconds));
    this.#memories.add(used);
    this.#rate.show(Math.round(this.#speeds.last).toLocaleString(), { series: this.#speeds });
    const of = total ? ` of ${bytes(total)}` : "";
    this.#memory.show(bytes(used) + of, { share: total ? used / total : 0, series: this.#memories });
    const share = blocks ? (blocks - free) / blocks : 0;
    this.#cache.show(`${Math.round(share * 100)}%`, { share });
    const { running = 0, waiting = 0 } = pulse;
    this.#requests.show(`${running} running, ${waiting} waiting`);
    allow(this.stop, running || waiting);
  }
}

function button(words, act, title) {
  const press = ({ currentTarget }) => currentTarget.getAttribute("aria-disabled") === "true" || act();
  return h("button", { type: "button", title, click: press }, words);
}

/** Enable or disable a button; unlike with `disabled`, it keeps the focus. */
function allow(button, allowed) {
  button.setAttribute("aria-disabled", String(!allowed));
}

function facts(model) {
  if (!model) return "";
  const size = model.parameters ? `${(model.parameters / 1e6).toLocaleString(undefined, { maximumFractionDigits: 1 })} M parameters` : "";
  const own = (model.layers_in ?? "transformers") !== "transformers" && `in ${model.layers_in}`;
  const place = model.device ? [model.quantization, model.dtype, "on", model.device, own].filter(Boolean).join(" ") : "";
  const context = model.context_length ? `context ${model.context_length}` : "";
  return [model.model_type, size, place, context].filter(Boolean).join(" · ");
}

/** Call `look()` at intervals, while the element is in view and the page is not hidden. */
function watch(element, interval, look) {
  let inView = true;
  const seen = new IntersectionObserver((entries) => (inView = entries.at(-1).isIntersecting));
  seen.observe(element);
  const timer = setInterval(() => inView && !document.hidden && look(), interval);
  look();
  return () => {
    clearInterval(timer);
    seen.disconnect();
  };
}

async function render({ model, el }) {
  let server = (await directServer(model))?.server;
  const ask = async (path, body = {}) => {
    try {
      await (await server.request(path, { body })).text();
    } catch (error) {
      monitor.refuse(error.message);
    }
  };
  const own = Object.assign(Object.create(model), { alone: () => isAlone(el) });
  const askKernel = (type) => tell(own, { type }) || monitor.fail(ENDED);
  const act = (type, path, body) => () => {
    monitor.refuse("");
    server ? ask(path, body) : askKernel(type);
  };
  const monitor = new Monitor({
    load: act("load", "model/load"),
    unload: act("unload", "model/unload"),
    stop: act("stop", "../../abort_request", { abort_all: true }),
  });
  el.append(monitor.element);
  let asked = -Infinity;
  const look = async () => {
    if (performance.now() - asked < LOST_MS) return;
    asked = performance.now();
    if (!server) return askKernel("look");
    try {
      monitor.show(await server.json("model"), performance.now() / 1000);
    } catch (error) {
      monitor.fail(error.message);
    } finally {
      asked = -Infinity;
    }
  };
  const heard = (message) => {
    asked = -Infinity;
    if (message.type === "model") monitor.show(message.model, performance.now() / 1000);
    else if (message.type === "error") message.asked === "look" ? monitor.fail(message.message) : monitor.refuse(message.message);
  };
  const turned = async () => {
    server = (await directServer(model))?.server;
    asked = -Infinity;
  };
  model.on("msg:custom", heard);
  model.on("change:server_id", turned);
  const leave = watch(monitor.element, model.get("interval_ms"), look);
  return () => {
    leave();
    monitor.element.remove(); // ipywidgets keeps a model's last view
    model.off("msg:custom", heard);
    model.off("change:server_id", turned);
  };
}

export default { render };
