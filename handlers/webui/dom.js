// Elements, icons and helpers of the page. Texts become text nodes: this module makes no HTML.

const SVG = "http://www.w3.org/2000/svg";

// Drawn on 24 by 24, as strokes.
const ICONS = {
  plus: "M12 5v14M5 12h14",
  send: "M12 19V6M6 11l6-6 6 6",
  stop: "M7 7h10v10H7z",
  copy: "M9 9h11v11H9zM5 15H4V4h11v1",
  check: "M5 12.5l4.5 4.5L19 7.5",
  edit: "M4 20h4L19 9l-4-4L4 16zM13.5 6.5l4 4",
  redo: "M20 11a8 8 0 1 0-2.5 6.5M20 5v6h-6",
  sun: "M12 8a4 4 0 1 0 0 8 4 4 0 0 0 0-8zM12 3v1.5M12 19.5V21M3 12h1.5M19.5 12H21M5.6 5.6l1.1 1.1M17.3 17.3l1.1 1.1M18.4 5.6l-1.1 1.1M6.7 17.3l-1.1 1.1",
  moon: "M20 14.5A8.5 8.5 0 0 1 9.5 4a8.5 8.5 0 1 0 10.5 10.5z",
  settings: "M4 7h9M17 7h3M4 17h3M11 17h9M15 4.5v5M9 14.5v5",
  menu: "M4 7h16M4 12h16M4 17h16",
  trash: "M5 7h14M10 7V4.5h4V7M7 7l1 13h8l1-13",
  download: "M12 4v11M7.5 11l4.5 4.5L16.5 11M5 20h14",
  upload: "M12 16V5M7.5 9L12 4.5 16.5 9M5 20h14",
  attach: "M19 11.5l-7.5 7.5a4.5 4.5 0 0 1-6.4-6.4L12.8 5a3 3 0 0 1 4.2 4.2l-7.5 7.5a1.5 1.5 0 0 1-2.1-2.1l6.8-6.8",
  left: "M14.5 6l-6 6 6 6",
  right: "M9.5 6l6 6-6 6",
  down: "M6 9.5l6 6 6-6",
  close: "M6 6l12 12M18 6L6 18",
  file: "M6 3.5h8l4 4V20.5H6zM14 3.5v4h4",
  tools: "M3.5 8.5h17v11h-17zM8.5 8.5v-3h7v3M3.5 13h7M13.5 13h7M10.5 11.5h3v3h-3z",
  sound: "M4 10v4h3l5 4V6L7 10zM16 9a4 4 0 0 1 0 6M18.5 6.5a8 8 0 0 1 0 11",
};

export function icon(name) {
  const svg = document.createElementNS(SVG, "svg");
  svg.setAttribute("viewBox", "0 0 24 24");
  svg.setAttribute("aria-hidden", "true");
  svg.classList.add("icon");
  const path = document.createElementNS(SVG, "path");
  path.setAttribute("d", ICONS[name]);
  svg.append(path);
  return svg;
}

// Returns an element. Properties that begin with "on" are listeners. An attribute with the value true
// is set; attributes and children that are false or null are left out.
export function h(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value == null) continue;
    else if (name === "value" || name === "checked" || name === "disabled") element[name] = value;
    else if (value === true) element.setAttribute(name, "");
    else if (value !== false) element.setAttribute(name, value);
  }
  element.append(...children.flat().filter((each) => each != null && each !== false));
  return element;
}

export function button(name, label, onclick, properties = {}) {
  return h(
    "button",
    { type: "button", class: "icon-button", "aria-label": label, title: label, onclick, ...properties },
    icon(name),
  );
}

export function replace(element, ...children) {
  element.replaceChildren(...children.flat().filter((each) => each != null && each !== false));
}

let pressed = null; // the element on which the user holds a pointer down
const due = new Map(); // by list: the function that makes its children
addEventListener("pointerdown", ({ target }) => { pressed = target; }, true);
for (const name of ["pointerup", "pointercancel"]) addEventListener(name, () => setTimeout(released), true);

function released() {
  pressed = null;
  const lists = [...due];
  due.clear();
  for (const [list, make] of lists) redraw(list, make);
}

// Replaces the children of a list of buttons by the elements that `make` returns; if it returns null, they
// stay. The button with the same `data-key` keeps the focus. While the user presses one of the buttons, they
// stay until its end: the click would not reach a replaced button.
export function redraw(list, make) {
  if (list.contains(pressed)) {
    due.set(list, make);
    return;
  }
  due.delete(list);
  const children = make();
  if (!children) return;
  const focused = list.contains(document.activeElement) ? document.activeElement.dataset.key : "";
  replace(list, ...children);
  if (focused) [...list.querySelectorAll("[data-key]")].find((each) => each.dataset.key === focused)?.focus();
}

export function svg(tag, attributes, ...children) {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

// Characters that can't be seen, or that reorder the text around them. Newlines and tabs stay, and so
// do the joiners within emoji.
const UNSEEN = /(?![\n\t\uFE0F])(?!(?<=\p{Extended_Pictographic}[\p{Emoji_Modifier}\uFE0F]?)\u200D\p{Extended_Pictographic})[\p{Cc}\p{Cf}\p{Cs}\p{DI}\p{Zl}\p{Zp}]/gu;
const MAX_SHOWN = 20_000; // characters

// Returns a foreign text in a form that shows every character: `⟨202E⟩` for an invisible one. The text
// ends after `most` characters, with the number of the others.
export function visible(text, most = MAX_SHOWN) {
  const rest = text.length - most;
  const shown = text.slice(0, most).replaceAll("\r\n", "\n")
    .replace(UNSEEN, (each) => `⟨${each.codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}⟩`);
  return rest > 0 ? `${shown}… and ${rest} more characters` : shown;
}

const NOTICE = 6000; // ms
const SECOND_THOUGHTS = 12000;

// Shows a message at the edge of the page, also for screen readers. `undo` reverts the reported
// action. The message stays while it has the pointer or the focus.
export function notify(text, kind = "info", undo = null) {
  const act = () => { notice.remove(); undo(); };
  const notice = h("div", { class: `notice ${kind}` }, h("span", {}, text),
    undo && h("button", { type: "button", class: "plain compact", onclick: act }, "Undo"));
  // After a deletion by keyboard, the focus moves from the deleted element to the button.
  const keys = undo && document.activeElement?.matches(":focus-visible:not(textarea, input)");
  document.getElementById("notices").append(notice);
  if (keys) notice.querySelector("button").focus();
  const end = () => setTimeout(() => (notice.matches(":hover, :focus-within") ? end() : notice.remove()),
    undo ? SECOND_THOUGHTS : NOTICE);
  end();
}

// Asks before an action that can't be undone. Returns true if the user agrees.
export function agreed(title, text, word) {
  return new Promise((resolve) => {
    const dialog = h("dialog", {
      class: "dialog small", role: "alertdialog", "aria-labelledby": "ask-title", "aria-describedby": "ask-text",
      onclose: () => { dialog.remove(); resolve(dialog.returnValue === "yes"); },
    }, h("form", { method: "dialog" },
      h("h2", { id: "ask-title" }, title), h("p", { id: "ask-text", class: "hint" }, text),
      h("div", { class: "actions" },
        h("button", { type: "submit", class: "plain" }, "Cancel"),
        h("button", { type: "submit", class: "plain danger", value: "yes" }, word))));
    document.body.append(dialog);
    dialog.showModal();
  });
}

export async function copyText(text) {
  if (navigator.clipboard) return navigator.clipboard.writeText(text);
  // Pages over plain HTTP have no clipboard, unless they are from this machine.
  const area = h("textarea", { value: text, class: "offscreen", "aria-hidden": "true" });
  (document.querySelector("dialog[open]") ?? document.body).append(area);
  area.select();
  const done = document.execCommand("copy");
  area.remove();
  if (!done) throw new Error("the browser refused to copy");
}

export function copyButton(text, label = "Copy") {
  const made = button("copy", label, async () => {
    try {
      await copyText(text());
      replace(made, icon("check"));
      setTimeout(() => replace(made, icon("copy")), 1500);
    } catch (error) {
      notify(`Copying failed: ${error.message}`, "error");
    }
  });
  return made;
}

export function save(name, text, type = "application/json") {
  const url = URL.createObjectURL(new Blob([text], { type }));
  const link = h("a", { href: url, download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(url), 10000);
}

export function newId() {
  const bytes = crypto.getRandomValues(new Uint8Array(12));
  return Array.from(bytes, (each) => each.toString(16).padStart(2, "0")).join("");
}

const COMPACT = new Intl.NumberFormat("en", { maximumFractionDigits: 1, notation: "compact" });
export const number = (value) => (Number.isFinite(value) ? COMPACT.format(value) : "–");
export const percent = (value) => (Number.isFinite(value) ? `${Math.round(100 * value)} %` : "–");
