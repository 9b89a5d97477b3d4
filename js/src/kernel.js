// Messages to the kernel's side of a widget, which may be gone.

export const ENDED = "The kernel has ended: run the cell again.";

/** Send a message; whether there is a kernel that may hear it. */
export function tell(model, message) {
  try {
    model.send(message);
    return true;
  } catch {
    return false;
  }
}
