// The folded area of options: what it changes goes into the widget's traits.

import { h } from "./dom.js";

const NUMBERS = [
  { name: "temperature", label: "Temperature", min: 0, max: 2, step: 0.1, placeholder: "model’s own" },
  { name: "max_new_tokens", label: "Longest answer (tokens)", min: 1, step: 1, placeholder: "no limit" },
];

export function settings(model) {
  const system = h("textarea", { rows: 2, placeholder: "How the model should behave", "aria-label": "System prompt" });
  system.value = model.get("system");
  system.addEventListener("change", () => save(model, "system", system.value));
  return h(
    "details",
    { class: "nbgen-settings" },
    h("summary", {}, "Options"),
    h("div", { class: "nbgen-fields" }, ...NUMBERS.map((field) => number(model, field))),
    h("label", {}, "System prompt", system),
  );
}

function number(model, { name, label, ...attributes }) {
  const input = h("input", { type: "number", ...attributes });
  input.value = model.get("params")[name] ?? "";
  input.addEventListener("change", () => {
    const { [name]: _, ...others } = model.get("params");
    if (!input.reportValidity()) return;
    const unset = name === "max_new_tokens" ? { [name]: null } : {};
    save(model, "params", { ...others, ...(input.value === "" ? unset : { [name]: Number(input.value) }) });
  });
  return h("label", {}, label, input);
}

function save(model, name, value) {
  model.set(name, value);
  model.save_changes();
}
