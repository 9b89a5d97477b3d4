// Entry of the widget: chooses how the panel talks to the server and mounts it.

import { Chat } from "./chat.js";
import { Comm } from "./comm.js";
import { Compare } from "./compare.js";
import { Direct } from "./direct.js";
import { directServer } from "./direct_server.js";
import { focusOf, h } from "./dom.js";
import { isAlone, tell } from "./kernel.js";
import { Released } from "./released.js";
import { Stream } from "./stream.js";
import { Unreachable } from "./unreachable.js";
import { Way } from "./way.js";

const PANELS = { chat: Chat, compare: Compare, stream: Stream };

function mount(model, host, direct) {
  const own = scoped(model, host);
  const panel = new PANELS[model.get("panel")](own, direct?.name);
  const listener = (event, data) => {
    panel.receive(event, data);
    released.hear(event, data);
    way.hear(event, data);
  };
  const chat = model.get("chat");
  const awake = Boolean(model.get("owner")); // the answer goes on once its calls are made
  const begun = (run) => tell(own, { type: "begun", run }); // the kernel knows all windows that show it
  const transport = (direct) => {
    if (direct) return new Direct(direct.server, chat, listener, { awake, begun });
    return model.get("transport") === "direct" ? new Unreachable(listener) : new Comm(own, chat, listener);
  };
  const way = new Way(transport, direct);
  const released = new Released(way, () => panel.element.querySelector("textarea").focus());
  panel.element.append(released.element);
  host.replaceChildren(panel.element);
  panel.open(way);
  released.look();
  let looking = null; // a panel that is closed meanwhile never hears
  const look = (glance) => (looking ??= panel.refresh(glance).finally(() => (looking = null)));
  const move = (direct) => {
    way.take(direct);
    released.look();
  };
  const close = () => {
    released.close();
    panel.close();
    own.silence();
  };
  return { panel, look, move, close };
}

/** The widget's model for one panel, whose listeners end together. */
function scoped(model, host) {
  const heard = [];
  const on = (name, listener) => {
    heard.push([name, listener]);
    model.on(name, listener);
  };
  const silence = () => heard.forEach(([name, listener]) => model.off(name, listener));
  const alone = () => isAlone(host);
  return Object.assign(Object.create(model), { on, silence, alone });
}

async function render({ model, el }) {
  const host = h("div");
  el.append(host);
  let direct = await directServer(model);
  let { panel, look, move, close } = mount(model, host, direct);
  const renew = () => {
    const { draft } = panel;
    const focused = host.contains(focusOf(host));
    close();
    ({ panel, look, move, close } = mount(model, host, direct));
    if (draft) panel.draft = draft;
    if (focused) panel.focus?.();
  };
  let moved = null; // where it is known which way leads to the kernel's server
  const turn = async () => {
    const next = await directServer(model);
    if (Boolean(next) !== Boolean(direct)) move(next);
    direct = next;
  };
  const turned = () => (moved = turn().catch(({ message }) => panel.receive("notice", { message })));
  const remote = async (message) => {
    await moved;
    if (message.type === "started" || (message.type === "begun" && !document.hidden)) panel.adopt(message);
    else if (message.type === "expanded") panel.receive("expanded", message);
  };
  const looked = ({ type }) => {
    if (direct && !document.hidden) look(type === "focus");
  };
  document.addEventListener("visibilitychange", looked);
  window.addEventListener("focus", looked);
  model.on("change:chat", renew);
  model.on("change:server_id", turned);
  model.on("msg:custom", remote);
  return () => {
    document.removeEventListener("visibilitychange", looked);
    window.removeEventListener("focus", looked);
    model.off("change:chat", renew);
    model.off("change:server_id", turned);
    model.off("msg:custom", remote);
    close();
    host.remove(); // ipywidgets keeps a model's last view
  };
}

export default { render };
