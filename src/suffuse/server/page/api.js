// The service's answers, its errors in words that help, and the token if it wants one.

const TOKEN = "suffuse.token";

let token = null;
try {
  token = sessionStorage.getItem(TOKEN);
} catch {
  // Storage is switched off: the token lasts as long as the page.
}

/** Something went wrong: `message` says what, `hint` what to do; `code` is one of the service's, or "away". */
export class ApiError extends Error {
  constructor(code, message, hint = null, status = 0) {
    super(message);
    Object.assign(this, { code, hint, status });
  }
}

const HINTS = {
  away: "Check that suffuse serve is still running, then try again.",
  busy: "Many people are searching. Try again in a moment.",
  timeout: "Ask for fewer results or fewer seeds, then try again.",
  internal: "The server's log says more. Try again.",
};

const address = (path) => new URL(path.replace(/^\/+/, ""), new URL("./", location.href));

export const hasToken = () => token !== null;

let askForToken = async () => null;
let asking = null;

/** How the person is asked for a token: `ask(refused)` gives it, or null. */
export function setTokenQuestion(ask) {
  askForToken = ask;
}

/** One answer for all requests that were refused at once: the person is asked a single time. */
function newToken(refused) {
  if (token !== refused) return Promise.resolve(token);
  asking ??= askForToken(refused !== null).then((given) => {
    asking = null;
    token = given;
    try {
      if (given !== null) sessionStorage.setItem(TOKEN, given);
    } catch {
      // As above.
    }
    return given;
  });
  return asking;
}

/** Fetch, asking for the token as long as the server refuses; gives the response or throws an ApiError. */
export async function request(path, options = {}) {
  for (;;) {
    const used = token;
    const headers = used === null ? options.headers : { ...options.headers, Authorization: `Bearer ${used}` };
    let response;
    try {
      response = await fetch(address(path), { ...options, headers });
    } catch (error) {
      if (error.name === "AbortError") throw error;
      throw new ApiError("away", "The server does not answer.", HINTS.away);
    }
    if (response.ok) return response;
    const error = await readError(response);
    if (response.status !== 401) throw error;
    if ((await newToken(used)) === null) throw error;
  }
}

async function readError(response) {
  const body = await response.json().catch(() => null);
  const { code = "internal", message = `The server answered ${response.status}.`, hint = null } = body?.error ?? {};
  if (response.status === 401) {
    return new ApiError("unauthorized", "This server needs a token.", "Whoever started it knows it.", 401);
  }
  const words = message ? message[0].toUpperCase() + message.slice(1) : message;
  return new ApiError(code, /[.!?]$/.test(words) ? words : `${words}.`, hint ?? HINTS[code] ?? null, response.status);
}

const json = async (path, options) => (await request(path, options)).json();

export const fetchInfo = () => json("api/info");

const known = new Map();

/** Items seen in any answer are remembered: chips and links need their names and thumbnails. */
export function remember(items) {
  for (const item of items) known.set(item.id, item);
}

export async function fetchItem(id) {
  if (!known.has(id)) known.set(id, await json(`api/items/${id}`));
  return known.get(id);
}

export async function fetchItems({ offset, limit, shuffle, q }, signal) {
  const query = new URLSearchParams({ offset, limit });
  if (shuffle) query.set("shuffle", shuffle);
  if (q) query.set("q", q);
  const page = await json(`api/items?${query}`, { signal });
  remember(page.items);
  return page;
}

export async function search(wanted, signal) {
  const headers = { "Content-Type": "application/json" };
  return seen(await json("api/search", { method: "POST", headers, body: JSON.stringify(wanted), signal }));
}

export async function searchByUpload(file, wanted, signal) {
  const body = new FormData();
  body.append("image", file, file.name || "picture");
  body.append("request", JSON.stringify(wanted));
  return seen(await json("api/search", { method: "POST", body, signal }));
}

function seen(answer) {
  for (const { hits } of Object.values(answer.results)) remember(hits);
  return answer;
}

export function explain(query, item, seeds, signal) {
  return json(`api/explain?${new URLSearchParams({ query, item, seeds })}`, { signal });
}

/** An address an <img> can load. With a token the picture is fetched, since <img> sends no headers. */
export async function pictureAddress(path) {
  if (!hasToken()) return address(path).href;
  return URL.createObjectURL(await (await request(path)).blob());
}
