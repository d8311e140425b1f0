// A picture of the person's own: dropped, pasted or chosen; and a small copy of it, to show beside the results.

import { ApiError } from "./api.js";
import { byId, icon, make } from "./dom.js";

const KEPT = "suffuse.upload.";
const PREVIEW = 640;
const previews = new Map();

/** What is known here of an upload the server remembers: its name and a small copy, if the browser could read it. */
export function uploaded(token) {
  if (!previews.has(token)) {
    try {
      previews.set(token, JSON.parse(sessionStorage.getItem(KEPT + token)));
    } catch {
      previews.set(token, null);
    }
  }
  return previews.get(token) ?? { name: "Your picture", address: null };
}

/** Keep a small copy in this tab, so that a reload still shows it. */
export async function keepPreview(token, file) {
  const kept = { name: file.name || "Pasted picture", address: await smallCopy(file) };
  previews.set(token, kept);
  try {
    sessionStorage.setItem(KEPT + token, JSON.stringify(kept));
  } catch {
    // No room, or storage is switched off: the copy lasts as long as the page.
  }
}

async function smallCopy(file) {
  try {
    const bitmap = await createImageBitmap(file);
    const scale = Math.min(1, PREVIEW / Math.max(bitmap.width, bitmap.height));
    const canvas = make("canvas", { width: Math.max(1, bitmap.width * scale), height: Math.max(1, bitmap.height * scale) });
    const pen = canvas.getContext("2d");
    pen.fillStyle = "#fff";
    pen.fillRect(0, 0, canvas.width, canvas.height);
    pen.drawImage(bitmap, 0, 0, canvas.width, canvas.height);
    return canvas.toDataURL("image/jpeg", 0.85);
  } catch {
    return null; // TIFF, for example: the server reads it, the browser does not.
  }
}

/** Refuse here what the server would refuse, with words instead of a long wait. */
export function checkFile(file, info) {
  if (!info.upload) {
    throw new ApiError(
      "unsupported", "This index takes no pictures of your own.",
      "It was built without a model that could read them. Click on a picture of the index instead.",
    );
  }
  if (file.type && !file.type.startsWith("image/")) {
    throw new ApiError("unsupported", `${file.name || "This"} is not a picture.`, "Give a JPEG, PNG, WebP, GIF, TIFF or BMP file.");
  }
  const limit = info.limits.upload_bytes;
  if (file.size > limit) {
    throw new ApiError(
      "too_large", `${file.name || "This picture"} is too large: ${megabytes(file.size)}.`,
      `The server takes up to ${megabytes(limit)}. Make it smaller, then try again.`,
    );
  }
  if (file.size === 0) throw new ApiError("invalid_request", `${file.name || "This file"} is empty.`, "Choose another one.");
}

export const megabytes = (bytes) => (bytes < 1e6 ? `${Math.ceil(bytes / 1e3)} kB` : `${(bytes / 1e6).toFixed(1)} MB`);

/** The place on the start view to choose a picture; says so where the index takes none. */
export function renderDrop(info, take) {
  if (!info.upload) {
    byId("drop").replaceChildren(
      make("p", { className: "hint" }, "Click on a picture to find more like it. This index takes no pictures of your own: it was built without a model that could read them."),
    );
    return;
  }
  const input = make("input", {
    type: "file", accept: "image/*", id: "file", className: "unseen",
    on: {
      change: () => {
        if (input.files.length) take(input.files[0]);
        input.value = "";
      },
    },
  });
  byId("drop").replaceChildren(
    make("p", { className: "hint" }, "Click on a picture below, or search with one of your own."),
    input,
    make(
      "label", { className: "drop", htmlFor: "file" },
      icon("upload"),
      make("span", {}, make("strong", {}, "Choose a picture"), make("span", { className: "drop-more" }, ", drop it here, or paste it with Ctrl+V")),
    ),
  );
}

/** Take pictures that are dropped anywhere on the page, or pasted. */
export function listenForPictures(take) {
  const overlay = byId("dropping");
  const carriesFiles = (event) => [...(event.dataTransfer?.types ?? [])].includes("Files");
  let depth = 0;
  const show = (shown) => {
    depth = shown;
    overlay.hidden = depth <= 0;
  };
  addEventListener("dragenter", (event) => carriesFiles(event) && show(depth + 1));
  addEventListener("dragleave", (event) => carriesFiles(event) && show(depth - 1));
  addEventListener("dragover", (event) => carriesFiles(event) && event.preventDefault());
  addEventListener("drop", (event) => {
    if (!carriesFiles(event)) return;
    event.preventDefault();
    show(0);
    if (event.dataTransfer.files.length) take(event.dataTransfer.files[0]);
  });
  addEventListener("paste", (event) => {
    const file = [...(event.clipboardData?.files ?? [])][0];
    if (!file) return; // Text goes where the cursor is.
    event.preventDefault();
    take(file);
  });
}
