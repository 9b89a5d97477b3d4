// The folded area of options: sampling parameters with presets, and the same as Python. What it changes goes into the
// widget's traits.

import { copyButton, h } from "./dom.js";
import { pythonCall } from "./python.js";

const OWN = "model’s own";
const NUMBERS = [
  { name: "temperature", label: "Temperature", min: 0, max: 2, step: 0.05, placeholder: OWN },
  { name: "top_p", label: "Top-p", min: 0.01, max: 1, step: 0.01, placeholder: OWN },
  { name: "top_k", label: "Top-k", min: 1, step: 1, placeholder: OWN },
  { name: "min_p", label: "Min-p", min: 0, max: 1, step: 0.01, placeholder: OWN },
  { name: "repetition_penalty", label: "Repetition penalty", min: 0.05, max: 2, step: 0.05, placeholder: OWN },
  { name: "frequency_penalty", label: "Frequency penalty", min: -2, max: 2, step: 0.1, placeholder: "0" },
  { name: "presence_penalty", label: "Presence penalty", min: -2, max: 2, step: 0.1, placeholder: "0" },
  { name: "max_new_tokens", label: "Longest answer (tokens)", min: 1, step: 1, placeholder: "no limit" },
  { name: "sampling_seed", label: "Seed", step: 1, placeholder: "another each time" },
];
const SHAPE = ["temperature", "top_p", "top_k", "min_p"];
const PRESETS = {
  "Model’s own": {},
  Precise: { temperature: 0 },
  Balanced: { temperature: 0.7, top_p: 0.9 },
  Creative: { temperature: 1.1, min_p: 0.05 },
};

/** `messages()` is what "Copy as Python" asks with; `system: false` leaves the system prompt out. */
export function settings(model, { messages, prompt, system = true }) {
  const area = h("div", { class: "nbgen-area" });
  const fill = () => area.replaceChildren(...fields(model, fill, { messages, prompt, system }));
  fill();
  model.on?.("change:params", () => area.contains(document.activeElement) || fill());
  return h("details", { class: "nbgen-settings" }, h("summary", {}, "Options"), area);
}

function fields(model, renew, { messages, prompt, system }) {
  const copy = copyButton("Copy as Python", () => pythonCall({ messages: messages?.(), prompt: prompt?.(), params: model.get("params") }), "Copy as Python");
  return [
    h("div", { class: "nbgen-row" }, presets(model, renew), copy),
    h("div", { class: "nbgen-fields" }, ...NUMBERS.map((field) => number(model, field)), stops(model)),
    ...(system ? [systemPrompt(model)] : []),
  ];
}

function presets(model, renew) {
  const params = model.get("params");
  const chosen = Object.keys(PRESETS).find((name) => SHAPE.every((key) => PRESETS[name][key] === params[key]));
  const names = [...Object.keys(PRESETS), ...(chosen ? [] : ["Custom"])];
  const select = h("select", { "aria-label": "Preset" }, ...names.map((name) => h("option", { value: name, selected: name === (chosen ?? "Custom") }, name)));
  select.addEventListener("change", () => {
    const others = Object.fromEntries(Object.entries(model.get("params")).filter(([name]) => !SHAPE.includes(name)));
    save(model, "params", { ...others, ...PRESETS[select.value] });
    renew();
  });
  return h("label", {}, "Preset", select);
}

function number(model, { name, label, ...attributes }) {
  const input = h("input", { type: "number", ...attributes });
  input.value = model.get("params")[name] ?? "";
  input.addEventListener("change", () => {
    if (!input.reportValidity()) return;
    const unset = name === "max_new_tokens" ? null : undefined;
    setParam(model, name, input.value === "" ? unset : Number(input.value));
  });
  return h("label", {}, label, input);
}

function stops(model) {
  const input = h("textarea", { rows: 1, placeholder: "one a line" });
  input.value = (model.get("params").stop ?? []).join("\n");
  input.addEventListener("change", () => {
    const strings = input.value.split("\n").filter(Boolean);
    setParam(model, "stop", strings.length ? strings : undefined);
  });
  return h("label", {}, "Stop strings", input);
}

function systemPrompt(model) {
  const input = h("textarea", { rows: 2, placeholder: "How the model should behave", "aria-label": "System prompt" });
  input.value = model.get("system");
  input.addEventListener("change", () => save(model, "system", input.value));
  return h("label", {}, "System prompt", input);
}

/** Without a value the option is left to its default. */
function setParam(model, name, value) {
  const { [name]: _, ...others } = model.get("params");
  save(model, "params", value === undefined ? others : { ...others, [name]: value });
}

function save(model, name, value) {
  model.set(name, value);
  model.save_changes();
}
