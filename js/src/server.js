// The Jupyter server of this page: its address, its token, and requests to nbgen's routes.

/** {base, token} of the page's server, or null if the page has none (VS Code, Colab). */
export function pageServer(model) {
  const settings = model.widget_manager?.kernel?.serverSettings;
  const { baseUrl, token } = settings?.baseUrl ? settings : ofPage() ?? ofClassicPage();
  return baseUrl ? { base: baseUrl, token: token ?? "" } : null;
}

function ofPage() {
  try {
    return JSON.parse(document.getElementById("jupyter-config-data").textContent);
  } catch {
    return null;
  }
}

/** {base, token} from what nbclassic writes into its pages. */
function ofClassicPage() {
  const { baseUrl, jupyterApiToken: token } = globalThis.document?.body?.dataset ?? {};
  return { baseUrl, token };
}

const LOGIN = "The server does not know you any more: reload the page to log in again.";

const SILENT = "The server does not answer: is Jupyter still running?";

/** The error of a run that the server has forgotten. */
export const LOST = "The end of this answer is lost: the server has forgotten it, or was started again.";

/** Like `fetch`, with an error in words if the server cannot be reached. */
async function answered(url, options) {
  try {
    return await fetch(url, options);
  } catch (error) {
    throw options.signal?.aborted ? error : new Error(SILENT);
  }
}

/** An unsuccessful response; its message is for the user. */
class ServerError extends Error {
  constructor(status, stated = {}) {
    super(status === 401 ? LOGIN : stated.message ?? words(status));
    this.status = status;
  }
}

function words(status) {
  return status === 403 ? LOGIN : `The server answered with status ${status}.`;
}

export class Server {
  #token;

  constructor({ base, token }) {
    this.url = new URL("nbgen/api/v1/", new URL(base.endsWith("/") ? base : `${base}/`, location.href)).href;
    this.#token = token;
  }

  /** The response of a route. Throws ServerError for any answer that is not a success. */
  async request(path, { body, signal } = {}) {
    const response = await answered(this.url + path, {
      method: body === undefined ? "GET" : "POST",
      headers: this.#headers(body !== undefined),
      body: body === undefined ? undefined : JSON.stringify(body),
      credentials: "same-origin",
      cache: "no-store",
      signal,
    });
    if (response.ok) return response;
    const answer = await response.json().catch(() => ({}));
    throw new ServerError(response.status, answer?.error instanceof Object ? answer.error : {});
  }

  async json(path, options) {
    return (await this.request(path, options)).json();
  }

  #headers(hasBody) {
    const xsrf = /(?:^|;\s*)_xsrf=([^;]+)/.exec(document.cookie)?.[1];
    return {
      ...(hasBody && { "Content-Type": "application/json" }),
      ...(this.#token && { Authorization: `token ${this.#token}` }),
      ...(xsrf && { "X-XSRFToken": decodeURIComponent(xsrf) }),
    };
  }
}
