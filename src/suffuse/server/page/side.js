// Beside the results: the query picture with its box, the feedback so far, and the settings.

import { fetchItem } from "./api.js";
import { boxLayer } from "./box.js";
import { showPicture } from "./dialogs.js";
import { afterPause, byId, icon, iconButton, make, nameOf } from "./dom.js";
import { filterControls } from "./filters.js";
import { picture, sized } from "./pictures.js";
import { DEFAULTS, startOver, toAddress, withFeedback } from "./state.js";
import { uploaded } from "./uploads.js";

const WIDE = matchMedia("(min-width: 60rem)");

/** The side of the results view; `go(state, options)` changes the view. */
export function createSide(info, go) {
  const query = make("section", { className: "query", aria: { label: "Query picture" } });
  const feedback = make("section", { className: "feedback", aria: { label: "Your feedback" } });
  const settings = make("details", { className: "settings", open: WIDE.matches });
  const back = make("a", { className: "back", on: { click: goBack } }, icon("back"), "All pictures");
  byId("side").replaceChildren(back, query, feedback, settings);
  let state = null;
  let shown = {};
  let sent = null; // Settings that a control here has just set: made anew, it would lose the focus in the middle of a drag.
  const filtered = make("span", { className: "dot" }, "filtered");
  const unfilter = make("button", { type: "button", className: "quiet", on: { click: clearFilter } }, "Clear the filter");

  function goBack(event) {
    if (event.metaKey || event.ctrlKey || event.shiftKey) return; // A new tab is the browser's business.
    event.preventDefault();
    go(startOver(state));
  }

  const changed = (part, value) => {
    const key = JSON.stringify(value);
    if (shown[part] === key) return false;
    shown[part] = key;
    return true;
  };

  const settingsOf = ({ top, seeds, method, filter }) => JSON.stringify([top, seeds, method, filter]);

  function set(changes, options) {
    const wanted = { ...state, ...changes };
    sent = settingsOf(wanted);
    go(wanted, options);
  }

  function clearFilter() {
    go({ ...state, filter: {} });
    settings.querySelector("summary").focus();
  }

  /** Show the query picture: an upload, or the first of the items. */
  async function showQuery() {
    const mine = state;
    const id = state.positive[0];
    const kept = state.upload ? uploaded(state.upload) : null;
    const item = kept ? { name: kept.name, image: kept.address } : await fetchItem(id).catch(() => ({ id, name: `#${id}` }));
    if (mine !== state) return;
    const path = kept ? null : sized(item, 640);
    const frame = picture(item, { path, address: kept?.address, alt: `The query: ${item.name}`, eager: true });
    const image = frame.querySelector("img");
    image?.addEventListener("load", () => fit(frame, image));
    const tools = make("div", { className: "tools" });
    query.classList.toggle("selecting", state.box !== null);
    if (image && info.upload) {
      const box = boxLayer(frame, state.box, (box) => go({ ...state, box }));
      const select = iconButton("crop", state.box ? "Adjust the part" : "Select a part", () => { query.classList.add("selecting"); box.begin(); }, { className: "button" });
      tools.append(select);
      if (state.box) {
        tools.append(iconButton("close", "Whole picture", () => { box.clear(); select.focus(); }, { className: "button" }));
      }
    }
    const enlarge = image && iconButton("enlarge", "Enlarge", () => showPicture(item, kept?.address), { small: true, className: "quiet" });
    const focused = query.contains(document.activeElement) ? document.activeElement.className : null;
    query.replaceChildren(
      make("div", { className: "stage" }, frame),
      make("div", { className: "named" }, make("p", { className: "name", title: item.name }, nameOf({ ...item, id })), enlarge ?? ""),
      tools,
      image && info.upload && !state.box ? make("p", { className: "hint" }, "Drag over the picture to search for a part of it.") : "",
    );
    // The part that was being adjusted keeps the focus through its own search.
    if (focused !== null) query.querySelector(focused === "box" ? ".box:not([hidden])" : ".tools button")?.focus();
  }

  function showFeedback() {
    const liked = state.upload ? state.positive : state.positive.slice(1);
    const group = (title, ids, kind) =>
      ids.length ? make("div", { className: `chips ${kind}` }, make("h2", {}, title), make("ul", { role: "list" }, ids.map((id) => chip(id, kind)))) : "";
    const clear = () => go({ ...state, positive: state.upload ? [] : state.positive.slice(0, 1), negative: [] });
    feedback.replaceChildren(
      group("More like", liked, "liked"),
      group("Less like", state.negative, "unliked"),
      liked.length + state.negative.length > 1 ? make("button", { type: "button", className: "quiet", on: { click: clear } }, "Clear all feedback") : "",
    );
    feedback.hidden = liked.length + state.negative.length === 0;
  }

  function chip(id, kind) {
    const made = make("li", { className: "chip" });
    fetchItem(id).catch(() => ({ id, name: `#${id}` })).then((item) => {
      const words = `Remove ${item.name || `#${id}`} from ${kind === "liked" ? "more like" : "less like"}`;
      made.append(
        picture(item, { alt: item.name, brief: true }),
        iconButton("close", words, () => go(withFeedback(state, id, 0)), { small: true }),
      );
    });
    return made;
  }

  function showSettings() {
    const compare = make("input", {
      type: "checkbox", role: "switch", id: "compare", checked: state.method === "both",
      on: { change: () => set({ method: compare.checked ? "both" : "diffusion" }) },
    });
    const most = (limit, usual, value) => Math.max(Math.min(limit, usual, info.images || 1), value, 1);
    const top = state.top ?? DEFAULTS.top;
    const seeds = state.seeds ?? (info.regional ? 200 : DEFAULTS.seeds);
    const fields = filterControls(info.metadata ?? {}, state.filter, (filter) => set({ filter }));
    settings.replaceChildren(
      make("summary", {}, "Settings", fields.length ? " and filter" : "", filtered),
      info.methods.includes("knn") ? make("label", { className: "switch", htmlFor: "compare" }, compare, make("span", {}, "Compare with k-NN")) : "",
      slider("seeds", "Seeds", "Nearest pictures from which diffusion starts", seeds, most(info.limits.seeds, info.regional ? 400 : 50, seeds)),
      slider("top", "Results", "How many pictures each list shows", top, most(info.limits.top, 120, top)),
      fields.length ? make("div", { className: "filter", role: "group", aria: { label: "Filter" } }, make("h2", {}, "Only pictures with"), fields) : "",
      unfilter,
    );
  }

  function slider(key, title, about, value, most) {
    const output = make("output", { htmlFor: key }, String(value));
    let pushed = false; // One drag is one step back.
    const settle = afterPause(120, () => {
      set({ [key]: input.valueAsNumber }, { replace: pushed });
      pushed = true;
    });
    const input = make("input", {
      type: "range", id: key, min: 1, max: most, aria: { describedby: `${key}-about` },
      on: { input: () => { output.value = input.value; settle(); }, change: () => { setTimeout(() => (pushed = false), 300); } },
    });
    input.value = value; // After min and max, which would cut it.
    return make(
      "div", { className: "field slider" },
      make("label", { htmlFor: key }, title, output),
      input,
      make("p", { className: "about", id: `${key}-about` }, about),
    );
  }

  return {
    /** Bring the side up to date; parts that did not change are left alone, and with them the focus. */
    show(wanted) {
      state = wanted;
      back.href = toAddress(startOver(state));
      if (changed("feedback", [state.upload, state.positive, state.negative])) showFeedback();
      if (changed("settings", settingsOf(state)) && settingsOf(state) !== sent) showSettings();
      sent = null;
      filtered.hidden = unfilter.hidden = Object.keys(state.filter).length === 0;
      if (changed("query", [state.upload, state.positive[0], state.box])) showQuery();
    },
  };
}

/** Give the frame the picture's own shape, so that fractions of the frame are fractions of the picture. */
function fit(frame, image) {
  const ratio = image.naturalWidth / image.naturalHeight;
  frame.style.aspectRatio = String(ratio);
  frame.classList.toggle("broad", ratio >= 4 / 3);
}
