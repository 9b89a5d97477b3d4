// Messages to the kernel's side of a widget; the kernel may be gone.

import { fitting } from "./content.js";

/** Most characters of turns sent to the kernel: Jupyter closes the connection at 10 MiB. */
const MAX_TOLD = 2_000_000;

/** A kernel that has not answered for so long is said to be busy. */
export const BUSY_MS = 1500;
/** After so long without news, what Jupyter may have dropped is asked for once more; then after twice as long, up to the longest. */
export const QUIET_MS = 5000;
export const LONGEST_MS = 60_000;
export const ENDED = "The kernel has ended: run the cell again.";

/** Whether an element is in a widget that Jupyter marks as one whose kernel is gone. */
export function isAlone(element) {
  return Boolean(element.closest(".jupyter-widgets-disconnected"));
}

/** Send a message. Returns whether there is a kernel to get it; a widget that was saved without its kernel has none. */
export function tell(model, message) {
  if (model.alone?.()) return false;
  try {
    model.send(message);
    return true;
  } catch {
    return false;
  }
}

/** Send the conversation to Python, for servers that do not have it: those of another kind, and restarted ones. */
export function tellTurns(model, type, turns) {
  const messages = fitting(turns, MAX_TOLD);
  if (messages) tell(model, { type, chat: model.get("chat"), messages });
}
