// The page: the state in the address decides what is shown; everything else asks for another state.

import { ApiError, fetchInfo, fetchItem, search, searchByUpload, setTokenQuestion } from "./api.js";
import { askForToken, hideAlert, showAlert } from "./dialogs.js";
import { announce, byId, count, icon, make } from "./dom.js";
import { createLists } from "./lists.js";
import { createSide } from "./side.js";
import { createStart } from "./start.js";
import { DEFAULTS, fromAddress, isSearch, startOver, toAddress } from "./state.js";
import { startTheme } from "./theme.js";
import { checkFile, keepPreview, listenForPictures, renderDrop, uploaded } from "./uploads.js";
import { createWhy } from "./why.js";

const KEPT_ANSWERS = 30;

let info = null;
let state = fromAddress(location.search);
let start, side, lists, why;
let running = null;
let startScroll = 0;
const answers = new Map(); // Back and forward show what was there, at once.

/** Change the view, and the address with it. */
function go(wanted, { replace = false } = {}) {
  leave();
  state = wanted;
  history[replace ? "replaceState" : "pushState"](null, "", toAddress(state));
  show();
}

function leave() {
  if (!byId("start").hidden) startScroll = scrollY;
}

addEventListener("popstate", () => {
  leave();
  state = fromAddress(location.search);
  if (info) show();
});

function show() {
  hideAlert();
  const searching = isSearch(state);
  const switched = byId("results").hidden === searching;
  byId("start").hidden = searching;
  byId("results").hidden = !searching;
  byId("share").hidden = !searching;
  if (searching) return showResults(switched);
  running?.abort();
  why.hide();
  document.title = `${info.name} · Suffuse`;
  start.show(state);
  if (switched) scrollTo(0, startScroll);
  return null;
}

/** Whether the focus is somewhere: what was hidden keeps it until the browser next draws the page. */
const isShown = (element) => element !== document.body && element.getClientRects().length > 0;

async function showResults(switched) {
  const mine = state;
  const moved = document.activeElement;
  if (switched) scrollTo(0, 0);
  lists.wait(state);
  side.show(state);
  name(mine);
  running?.abort();
  const { signal } = (running = new AbortController());
  try {
    const answer = await find(mine, signal);
    if (state !== mine) return;
    lists.show(mine, answer);
    if (info.explain) why.belongsTo(answer.query, seedsOf(mine), mine.box ? [] : mine.positive);
    // Where the control that was used is gone, the focus goes to the results, not to the top of the page.
    if (moved !== document.body && !isShown(document.activeElement)) lists.focusTitle();
  } catch (error) {
    if (error.name === "AbortError" || state !== mine) return;
    if (!(error instanceof ApiError)) throw error;
    why.hide();
    const gone = mine.upload && error.status === 404 && !mine.negative.length && !mine.positive.length;
    if (gone) error.hint = "The server forgets pictures of your own after a while. Choose the picture again.";
    lists.fail(error, () => showResults(false));
  }
}

async function name(mine) {
  const id = mine.positive[0];
  const item = mine.upload ? uploaded(mine.upload) : await fetchItem(id).catch(() => ({ id }));
  if (state !== mine) return;
  lists.name(mine.box ? "More like a part of" : "More like", item);
  why.asked(item);
}

const seedsOf = ({ seeds }) => Math.min(seeds ?? (info.regional ? 200 : DEFAULTS.seeds), info.limits.seeds);

/** What every search asks for, whatever it starts from. */
function settings(mine) {
  const { top, filter } = mine;
  const wanted = { top: Math.min(top ?? DEFAULTS.top, info.limits.top), seeds: seedsOf(mine) };
  // Both rankings, even where one is shown: the marks tell what the other missed.
  wanted.method = info.methods.includes("knn") ? "both" : "diffusion";
  if (Object.keys(filter).length) wanted.filter = filter;
  return wanted;
}

async function find(mine, signal) {
  const { upload, positive, negative, box } = mine;
  const wanted = settings(mine);
  const feedback = {};
  if (negative.length) feedback.negative = negative;
  if (upload) {
    if (positive.length) feedback.positive = positive;
    return ask({ query: upload, ...feedback, ...(box ? { box } : {}), ...wanted }, signal);
  }
  if (!box) return ask({ positive, ...feedback, ...wanted }, signal);
  const part = { positive: positive.slice(0, 1), box, ...wanted };
  if (positive.length === 1 && !negative.length) return ask(part, signal);
  // A box belongs to one picture: the part is searched first, and feedback goes to the query the server made of it.
  const { query } = await ask(part, signal);
  if (positive.length > 1) feedback.positive = positive.slice(1);
  return ask({ query, ...feedback, ...wanted }, signal);
}

async function ask(wanted, signal) {
  const key = JSON.stringify(wanted);
  if (!answers.has(key)) {
    keep(key, await search(wanted, signal));
  }
  return answers.get(key);
}

function keep(key, answer) {
  answers.set(key, answer);
  if (answers.size > KEPT_ANSWERS) answers.delete(answers.keys().next().value);
}

/** Search with a picture of the person's own. */
async function take(file) {
  hideAlert();
  document.body.classList.add("uploading");
  try {
    checkFile(file, info);
    announce("Searching with your picture…");
    const mine = settings(state);
    const answer = await searchByUpload(file, mine);
    await keepPreview(answer.query, file);
    keep(JSON.stringify({ query: answer.query, ...mine }), answer);
    go({ ...startOver(state), upload: answer.query });
  } catch (error) {
    if (!(error instanceof ApiError)) throw error;
    showAlert(error, ["away", "busy", "timeout"].includes(error.code) ? () => take(file) : null);
  } finally {
    document.body.classList.remove("uploading");
  }
}

function startShare() {
  const button = byId("share");
  const words = make("span", {}, "Copy link");
  button.replaceChildren(icon("link"), words);
  button.addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(location.href);
      words.textContent = "Copied";
    } catch {
      words.textContent = "Copy it from the address bar";
    }
    announce(words.textContent);
    setTimeout(() => (words.textContent = "Copy link"), 2500);
  });
}

async function begin() {
  setTokenQuestion(askForToken);
  hideAlert();
  try {
    info = await fetchInfo();
  } catch (error) {
    if (!(error instanceof ApiError)) throw error;
    byId("where").textContent = "";
    showAlert(error, begin);
    return;
  }
  byId("where").replaceChildren(make("strong", {}, info.name.replace(/\.index$/, "")), ` ${count(info.images, "picture")}`);
  document.body.classList.toggle("no-pictures", !info.pictures);
  document.body.classList.toggle("no-why", !info.explain);
  why ??= createWhy();
  start ??= createStart(go);
  lists ??= createLists(go, why);
  side = createSide(info, go);
  renderDrop(info, take);
  show();
}

startTheme();
startShare();
byId("home").addEventListener("click", (event) => {
  if (!info || event.metaKey || event.ctrlKey || event.shiftKey) return;
  event.preventDefault();
  go(startOver({ ...state, q: "", shuffle: 0, filter: {} }));
});
listenForPictures((file) => info && take(file));
begin();
