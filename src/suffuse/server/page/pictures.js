// Pictures that never break: lazily loaded, by token if need be, and the name in their place where there are none.

import { hasToken, pictureAddress } from "./api.js";
import { make } from "./dom.js";

const TINY = 64;

// With a token every picture is a request of its own: only those that come into sight are fetched.
const fetching = new IntersectionObserver((entries) => {
  for (const { target, isIntersecting } of entries) {
    if (!isIntersecting) continue;
    fetching.unobserve(target);
    load(target, target.dataset.path);
  }
}, { rootMargin: "300px" });

async function load(image, path) {
  try {
    image.src = await pictureAddress(path);
  } catch {
    image.dispatchEvent(new Event("error"));
  }
}

/** The frame of an item's picture; `path` is the service's, `address` one the browser knows (an upload).

    Where there is no picture the name stands in its place, without its folders if it is `brief`. */
export function picture(item, { path = item.thumb, address = null, alt = "", eager = false, brief = false } = {}) {
  const frame = make("span", { className: "picture" });
  if (brief) item = { id: item.id, name: item.name?.split("/").pop() };
  if (!path && !address) return withoutPicture(frame, item);
  const image = make("img", { alt, draggable: false, decoding: "async" });
  image.addEventListener("load", () => {
    // Little scans (digits, icons) stay crisp.
    if (image.naturalWidth <= TINY && image.naturalHeight <= TINY) image.classList.add("tiny");
    frame.classList.add("loaded");
    if (image.src.startsWith("blob:") && !address) URL.revokeObjectURL(image.src);
  });
  image.addEventListener("error", () => withoutPicture(frame, item, "cannot be shown"));
  if (!eager) image.loading = "lazy";
  frame.append(image);
  if (address) image.src = address;
  else if (hasToken() && !eager) {
    image.dataset.path = path;
    fetching.observe(image);
  } else load(image, path);
  return frame;
}

/** A thumbnail's address in another size. */
export const sized = (item, size) => (item.thumb ? `${item.thumb}?size=${size}` : null);

function withoutPicture(frame, item, reason = null) {
  frame.classList.add("wordy");
  const facts = Object.entries(item.metadata ?? {}).slice(0, 4).map(([field, value]) => `${field}: ${value}`);
  frame.replaceChildren(
    make("span", { className: "word" }, item.name || `#${item.id}`),
    make("span", { className: "word-id" }, reason ?? (item.id === undefined ? "" : `#${item.id}`)),
    make("span", { className: "word-facts" }, facts.join(", ")),
  );
  return frame;
}
