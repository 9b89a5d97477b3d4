// The code that each panel carries itself: it loads the rest from a widget that all panels of a kernel share.

/** Modules by their source text, since one page may have kernels with two versions of nbgen. */
const modules = (globalThis[Symbol.for("nbgen.modules")] ??= new Map());
const MISSING = "The code of this panel was not saved with it. Run the cell again.";

async function imported(text) {
  const url = URL.createObjectURL(new Blob([text], { type: "text/javascript" }));
  try {
    return await import(url);
  } catch (error) {
    modules.delete(text);
    throw error;
  } finally {
    URL.revokeObjectURL(url);
  }
}

function module(text) {
  if (!modules.has(text)) modules.set(text, imported(text));
  return modules.get(text);
}

/** Set the one style element of the page, or of a shadow tree in it (marimo's), to the version that was shown last. */
function dress(el, css) {
  const root = el.getRootNode();
  const place = root instanceof ShadowRoot ? root : document.head;
  let style = place.querySelector("#nbgen-panels");
  if (!style) {
    style = document.createElement("style");
    style.id = "nbgen-panels";
    place.append(style);
  }
  if (style.textContent !== css) style.textContent = css;
}

function shared(model) {
  return model.widget_manager.get_model(model.get("code").replace("IPY_MODEL_", ""));
}

/** Where ipywidgets fails to bring one widget back, a page has none of the kernel's: ask for the code, if one is there. */
function later(context) {
  const { model, el } = context;
  let end;
  const come = async () => {
    model.off("change:code", come);
    el.textContent = "";
    end = await render(context);
  };
  el.textContent = MISSING;
  model.on("change:code", come);
  model.send({ type: "code" });
  return () => {
    model.off("change:code", come);
    end?.();
  };
}

async function render(context) {
  const code = await shared(context.model).catch(() => null);
  if (!code) return later(context);
  dress(context.el, code.get("css"));
  const { default: panel } = await module(code.get("javascript"));
  return panel.render(context);
}

export default { render };
