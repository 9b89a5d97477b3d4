// The folded area of options: sampling parameters with presets, and a button that copies them as Python. Changes go
// into the widget's traits.

import { copyButton, focusOf, h } from "./dom.js";
import { pythonCall } from "./python.js";

const OWN = "model’s own";
const NUMBERS = [
  { name: "temperature", label: "Temperature", min: 0, max: 2, step: "any", placeholder: OWN },
  { name: "top_p", label: "Top-p", min: 0.01, max: 1, step: "any", placeholder: OWN },
  { name: "top_k", label: "Top-k", min: 1, step: 1, placeholder: OWN },
  { name: "min_p", label: "Min-p", min: 0, max: 1, step: "any", placeholder: OWN },
  { name: "repetition_penalty", label: "Repetition penalty", min: 0.05, max: 2, step: "any", placeholder: OWN },
  { name: "frequency_penalty", label: "Frequency penalty", min: -2, max: 2, step: "any", placeholder: "0" },
  { name: "presence_penalty", label: "Presence penalty", min: -2, max: 2, step: "any", placeholder: "0" },
  { name: "max_new_tokens", label: "Longest answer (tokens)", min: 1, step: 1, placeholder: "no limit" },
  { name: "sampling_seed", label: "Seed", step: 1, placeholder: "random" },
];
const CUSTOM = "Custom";
const SHAPE = ["temperature", "top_p", "top_k", "min_p"];
const PRESETS = {
  "Model’s own": {},
  Precise: { temperature: 0 },
  Balanced: { temperature: 0.7, top_p: 0.9 },
  Creative: { temperature: 1.1, min_p: 0.05 },
};

/** `messages()` are those of "Copy as Python"; `system: false` leaves the system prompt out. `say` shows refusals. */
export function settings(model, { messages, prompt, system = true, say }) {
  const copy = copyButton("Copy as Python", () => pythonCall({ messages: messages?.(), prompt: prompt?.(), params: model.get("params"), beside: model.get("beside") }), "Copy as Python");
  return h(
    "details",
    { class: "nbgen-settings" },
    h("summary", {}, "Options"),
    h("div", { class: "nbgen-row" }, presets(model), copy),
    h("div", { class: "nbgen-fields" }, ...NUMBERS.map((field) => number(model, field, say)), stops(model)),
    ...(system ? [systemPrompt(model)] : []),
  );
}

/** Show `value()` in an input now and whenever the trait changes, unless something else is being written there. Returns the function. */
function shows(model, trait, input, value) {
  let shown;
  const show = () => {
    if (input === focusOf(input) && input.value !== shown) return;
    input.value = value();
    shown = input.value;
  };
  model.on?.(`change:${trait}`, show);
  show();
  return () => {
    shown = input.value;
    show();
  };
}

function presets(model) {
  const select = h("select", { "aria-label": "Preset" }, ...[...Object.keys(PRESETS), CUSTOM].map((name) => h("option", { value: name }, name)));
  const custom = select.lastChild;
  const chosen = () => {
    const params = model.get("params");
    const name = Object.keys(PRESETS).find((name) => SHAPE.every((key) => PRESETS[name][key] === params[key])) ?? CUSTOM;
    custom.hidden = custom.disabled = name !== CUSTOM; // Safari hides none
    return name;
  };
  const renew = shows(model, "params", select, chosen);
  select.addEventListener("change", () => {
    const others = Object.fromEntries(Object.entries(model.get("params")).filter(([name]) => !SHAPE.includes(name)));
    save(model, "params", { ...others, ...PRESETS[select.value] });
    renew();
  });
  return h("label", {}, "Preset", select);
}

function number(model, { name, label, ...attributes }, say) {
  const input = h("input", { type: "number", ...attributes });
  const renew = shows(model, "params", input, () => model.get("params")[name] ?? "");
  const unset = name === "max_new_tokens" ? null : undefined;
  input.addEventListener("change", () => {
    if (input.checkValidity()) setParam(model, name, input.value === "" ? unset : Number(input.value));
    else say(`${label} stays as it was. ${input.validationMessage}`);
    renew();
  });
  return h("label", {}, label, input);
}

function stops(model) {
  const input = h("textarea", { rows: 1, dir: "auto", placeholder: "one a line, \\n within", title: "Within a text \\n is a line end and \\t a tab" });
  const renew = shows(model, "params", input, () => (model.get("params").stop ?? []).map(inLine).join("\n"));
  input.addEventListener("change", () => {
    const strings = input.value.split("\n").filter(Boolean).map(unescaped);
    setParam(model, "stop", strings.length ? strings : undefined);
    renew();
  });
  return h("label", {}, "Stop strings", input);
}

/** A text on one line, with the escapes that `%%nbgen --stop` takes (nbgen/notebook/magic_line.py). */
export function inLine(text) {
  return text.replace(/\\(?=[nt\\\n\t])/g, "\\\\").replaceAll("\n", "\\n").replaceAll("\t", "\\t");
}

/** The inverse of `inLine`. */
export function unescaped(line) {
  return line.replace(/\\([nt\\])/g, (_, letter) => ({ n: "\n", t: "\t" })[letter] ?? letter);
}

function systemPrompt(model) {
  const input = h("textarea", { rows: 2, dir: "auto", placeholder: "How the model should behave", "aria-label": "System prompt" });
  shows(model, "system", input, () => model.get("system"));
  input.addEventListener("change", () => save(model, "system", input.value));
  return h("label", {}, "System prompt", input);
}

/** Set an option; without a value it has its default again. */
function setParam(model, name, value) {
  const { [name]: _, ...others } = model.get("params");
  save(model, "params", value === undefined ? others : { ...others, [name]: value });
}

function save(model, name, value) {
  model.set(name, value);
  model.save_changes();
}
