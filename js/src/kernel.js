// Messages to the kernel's side of a widget, which may be gone.

import { fitting } from "./content.js";

/** Of what the kernel is told: Jupyter closes the connection at 10 MiB. */
const MAX_TOLD = 2_000_000;

export const ENDED = "The kernel has ended: run the cell again.";

/** Whether an element is in a widget that Jupyter marks as one whose kernel is gone. */
export function isAlone(element) {
  return Boolean(element.closest(".jupyter-widgets-disconnected"));
}

/** Send a message; whether there is a kernel that may hear it. A widget that was saved without its kernel has none. */
export function tell(model, message) {
  if (model.alone?.()) return false;
  try {
    model.send(message);
    return true;
  } catch {
    return false;
  }
}

/** Python asks the server for the conversation; one of another kind keeps none, one started again has forgotten. */
export function tellTurns(model, type, turns) {
  const messages = fitting(turns, MAX_TOLD);
  if (messages) tell(model, { type, chat: model.get("chat"), messages });
}
