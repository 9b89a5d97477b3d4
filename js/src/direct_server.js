// The server that the page can reach directly, without the kernel.

import { pageServer, Server } from "./server.js";

const HELLO_MS = 3000;

/** {server, name of its model} if the page's server is the one that the kernel uses, else null. */
export async function directServer(model) {
  const place = pageServer(model);
  if (model.get("transport") === "comm" || !place || !model.get("server_id")) return null;
  const server = new Server(place);
  try {
    const hello = await server.json("hello", { signal: AbortSignal.timeout(HELLO_MS) });
    return hello.server_id === model.get("server_id") ? { server, name: hello.model?.name } : null;
  } catch {
    return null;
  }
}
