// The view as an address: a link reproduces it, and the browser's back and forward work.

export const DEFAULTS = { seeds: 10, top: 24 };

const whole = (text, fallback, least = 0) => (/^\d{1,9}$/.test(text ?? "") && Number(text) >= least ? Number(text) : fallback);

const unique = (ids) => [...new Set(ids)];

/** The view an address describes; what cannot be understood in it is left out. */
export function fromAddress(text) {
  const given = new URLSearchParams(text);
  const ids = (given.get("items") ?? "").split(",").filter((part) => /^-?\d{1,15}$/.test(part));
  return {
    upload: /^q-[\w.-]{1,200}$/.test(given.get("query") ?? "") ? given.get("query") : null,
    positive: unique(ids.filter((id) => id[0] !== "-").map(Number)),
    // "-0" is the item 0, not wanted.
    negative: unique(ids.filter((id) => id[0] === "-").map((id) => Number(id.slice(1)))),
    box: boxFrom(given.get("box")),
    seeds: whole(given.get("seeds"), null, 1),
    top: whole(given.get("top"), null, 1),
    method: given.get("method") === "diffusion" ? "diffusion" : "both",
    filter: filterFrom(given.get("filter")),
    q: (given.get("q") ?? "").slice(0, 200),
    shuffle: whole(given.get("shuffle"), 0),
  };
}

function boxFrom(text) {
  const sides = (text ?? "").split(",").map(Number);
  const sound = sides.length === 4 && sides.every((side) => side >= 0 && side <= 1);
  return sound && sides[0] < sides[2] && sides[1] < sides[3] ? sides : null;
}

function filterFrom(text) {
  try {
    const filter = JSON.parse(text ?? "{}");
    return filter !== null && typeof filter === "object" && !Array.isArray(filter) ? filter : {};
  } catch {
    return {};
  }
}

/** The address of a view; what is as usual is left out. */
export function toAddress(state) {
  const told = [];
  const tell = (key, value) => told.push(`${key}=${value}`);
  if (isSearch(state)) {
    if (state.upload) tell("query", encodeURIComponent(state.upload));
    const items = [...state.positive, ...state.negative.map((id) => `-${id}`)];
    if (items.length) tell("items", items.join(","));
    if (state.box) tell("box", state.box.map((side) => Number(side.toFixed(4))).join(","));
    if (state.seeds) tell("seeds", state.seeds);
    if (state.top) tell("top", state.top);
    if (state.method !== "both") tell("method", state.method);
    if (Object.keys(state.filter).length) tell("filter", encodeURIComponent(JSON.stringify(state.filter)));
  } else {
    if (state.q) tell("q", encodeURIComponent(state.q));
    if (state.shuffle) tell("shuffle", state.shuffle);
  }
  return told.length ? `?${told.join("&")}` : "./";
}

/** Whether a view shows results; otherwise it is the start. */
export const isSearch = (state) => state.upload !== null || state.positive.length > 0;

/** A new search from one item: settings stay, feedback and box do not. */
export const searchFrom = (state, id) => ({ ...state, upload: null, positive: [id], negative: [], box: null });

/** The start view, with the settings kept for the next search. */
export const startOver = (state) => ({ ...state, upload: null, positive: [], negative: [], box: null });

/** Feedback on a hit: 1 for more like it, -1 for less, 0 for none. */
export function withFeedback(state, id, sign) {
  const positive = state.positive.filter((other) => other !== id);
  const negative = state.negative.filter((other) => other !== id);
  if (sign > 0) positive.push(id);
  if (sign < 0) negative.push(id);
  return { ...state, positive, negative };
}
