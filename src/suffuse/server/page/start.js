// The start view: pictures of the index to click on, more as one scrolls, by name or shuffled.

import { fetchItems } from "./api.js";
import { showAlert } from "./dialogs.js";
import { afterPause, announce, byId, count, iconButton, make } from "./dom.js";
import { picture } from "./pictures.js";
import { addRoving, refreshRoving } from "./roving.js";
import { searchFrom, startOver, toAddress } from "./state.js";

const PAGE = 60;

/** The start view's own part of the page; `go(state, options)` changes the view. */
export function createStart(go) {
  const tiles = byId("tiles");
  const more = byId("more");
  const field = byId("search");
  let shown = null; // The words and order the tiles belong to.
  let state = null;
  let loaded = 0;
  let total = 0;
  let running = null;
  addRoving(tiles);

  const type = afterPause(200, () => go({ ...startOver(state), q: field.value.trim() }, { replace: true }));
  field.addEventListener("input", type);
  byId("search-form").addEventListener("submit", (event) => {
    event.preventDefault();
    type.cancel();
    go({ ...startOver(state), q: field.value.trim() }, { replace: true });
  });
  byId("shuffle").replaceChildren(...iconButton("shuffle", "Shuffle").childNodes);
  byId("shuffle").addEventListener("click", () => go({ ...startOver(state), shuffle: 1 + Math.floor(Math.random() * 1e6) }));

  const watcher = new IntersectionObserver(
    (entries) => entries.some((entry) => entry.isIntersecting) && load(), { rootMargin: "600px" },
  );
  watcher.observe(more);

  async function load() {
    if (running || shown === null || loaded >= total) return;
    const mine = (running = new AbortController());
    try {
      more.textContent = loaded === 0 ? "Loading…" : "Loading more…";
      const page = await fetchItems({ offset: loaded, limit: PAGE, q: state.q, shuffle: state.shuffle }, mine.signal);
      if (running !== mine) return;
      if (loaded === 0) tiles.replaceChildren();
      total = page.total;
      loaded += page.items.length;
      if (page.items.length === 0) total = loaded; // The index has shrunk: do not ask for ever.
      tiles.append(...page.items.map(tile));
      refreshRoving(tiles);
      say();
      running = null;
      // Still in sight after one page on a large screen: the watcher only tells of changes.
      if (more.getBoundingClientRect().top < innerHeight + 600) load();
    } catch (error) {
      if (error.name === "AbortError" || running !== mine) return;
      running = null;
      more.replaceChildren(
        make("button", { type: "button", className: "button", on: { click: load } }, "Load more"),
      );
      showAlert(error, load);
    }
  }

  function say() {
    byId("total").textContent = state.q ? `${count(total, "picture")} with “${state.q}”` : count(total, "picture");
    if (total === 0) {
      const words = state.q ? `No picture has “${state.q}” in its name.` : "This index is empty.";
      more.replaceChildren(
        make("p", { className: "state" }, make("strong", {}, words), state.q ? " Try a shorter piece of the name." : " Build one with suffuse images FOLDER."),
      );
      announce(words);
    } else more.replaceChildren(loaded < total ? make("button", { type: "button", className: "button", on: { click: load } }, "Load more") : "");
  }

  function tile(item) {
    const go_ = (event) => {
      if (event.metaKey || event.ctrlKey || event.shiftKey) return; // A new tab is the browser's business.
      event.preventDefault();
      type.cancel();
      go(searchFrom(state, item.id));
    };
    return make(
      "li", { className: "cell tile" },
      make(
        "a", { className: "go", href: toAddress(searchFrom(state, item.id)), title: item.name, aria: { label: `Find more like ${item.name || `#${item.id}`}` }, on: { click: go_ } },
        picture(item, { alt: item.name }),
      ),
    );
  }

  return {
    show(wanted) {
      state = wanted;
      if (document.activeElement !== field) field.value = state.q;
      const key = JSON.stringify([state.q, state.shuffle]);
      if (shown === key) return;
      shown = key;
      running?.abort();
      running = null;
      [loaded, total] = [0, Infinity];
      load();
    },
  };
}
