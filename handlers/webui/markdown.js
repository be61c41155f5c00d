// Renders a model's text as elements. The text is untrusted: marked converts it to HTML, and only
// DOMPurify inserts that into the page. Code is highlighted and formulas are typeset afterwards.

import "./purify.min.js";
import { Marked } from "./marked.esm.js";
import { copyButton, h } from "./dom.js";

const purify = globalThis.DOMPurify;
const MAX_HIGHLIGHTED = 50_000; // characters

const escaped = (text) =>
  text.replace(/[&<>"]/g, (each) => ({ "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;" })[each]);

function formula(name, level, start, pattern) {
  return {
    name,
    level,
    start: (source) => source.match(start)?.index,
    tokenizer(source) {
      const found = pattern.exec(source);
      const tex = found?.slice(1).find((each) => each !== undefined);
      return tex?.trim() ? { type: name, raw: found[0], tex, display: level === "block" } : undefined;
    },
    renderer: ({ tex, display, raw }) =>
      `<code class="tex${display || /^(\$\$|\\\[)/.test(raw) ? " display" : ""}">${escaped(tex)}</code>`,
  };
}

const marked = new Marked({
  gfm: true,
  breaks: true,
  extensions: [],
});
marked.use({
  extensions: [
    formula("blockTex", "block", /\$\$|\\\[/, /^(?:\$\$([^]+?)\$\$|\\\[([^]+?)\\\])(?:\n|$)/),
    formula(
      "inlineTex",
      "inline",
      /\$|\\\(|\\\[/,
      // "$5 and $6" are amounts: a formula has no space inside of its dollars, and no digit after it.
      /^(?:\$\$([^]+?)\$\$|\\\(([^]+?)\\\)|\\\[([^]+?)\\\]|\$([^\s$](?:[^$\n]*[^\s$\\])?)\$(?!\d))/,
    ),
  ],
  // HTML in the text is shown as source.
  renderer: { html: ({ text }) => escaped(text) },
});

const ALLOWED = {
  ALLOWED_TAGS: [
    "a", "blockquote", "br", "code", "del", "em", "h1", "h2", "h3", "h4", "h5", "h6", "hr", "img",
    "input", "li", "ol", "p", "pre", "strong", "sub", "sup", "table", "tbody", "td", "th", "thead",
    "tr", "ul", "span",
  ],
  ALLOWED_ATTR: ["href", "src", "alt", "title", "class", "align", "start", "type", "checked", "disabled"],
  // These contain no addresses, so the pattern below doesn't apply to them.
  ADD_URI_SAFE_ATTR: ["align", "start", "type"],
  ALLOW_DATA_ATTR: false,
  ALLOW_ARIA_ATTR: false,
  ALLOWED_URI_REGEXP: /^(?:https?:|mailto:|data:image\/(?:png|jpeg|gif|webp);)/i,
  RETURN_DOM_FRAGMENT: true,
};

// Returns text as elements, without highlighting and formulas, which `finish` adds.
export function rendered(text) {
  const fragment = purify.sanitize(marked.parse(text), ALLOWED);
  for (const link of fragment.querySelectorAll("a")) {
    link.target = "_blank";
    link.rel = "noopener noreferrer nofollow";
  }
  for (const image of fragment.querySelectorAll("img")) {
    // An image from another host would show that host what the user reads. The page's content security
    // policy forbids such images, too.
    if (!image.getAttribute("src")?.startsWith("data:image/")) replaceImage(image);
  }
  for (const box of fragment.querySelectorAll("input")) {
    if (box.type !== "checkbox") box.remove();
    else {
      box.disabled = true;
      box.setAttribute("aria-label", "Task");
    }
  }
  for (const table of fragment.querySelectorAll("table")) {
    const frame = h("div", { class: "table", tabindex: "0", role: "region", "aria-label": "Table" });
    table.replaceWith(frame);
    frame.append(table);
  }
  for (const code of fragment.querySelectorAll("pre > code")) frameCode(code);
  return fragment;
}

function replaceImage(image) {
  const source = image.getAttribute("src") ?? "";
  const label = `Image: ${image.alt || source || "without an address"}`;
  const safe = /^https?:/i.test(source);
  image.replaceWith(
    safe && !image.closest("a")
      ? h("a", { href: source, target: "_blank", rel: "noopener noreferrer nofollow" }, label)
      : h("span", {}, label),
  );
}

function languageOf(code) {
  return [...code.classList].find((each) => each.startsWith("language-"))?.slice(9) ?? "";
}

function frameCode(code) {
  const pre = code.parentElement;
  const frame = h(
    "div",
    { class: "code" },
    h("div", { class: "code-head" }, h("span", {}, languageOf(code) || "text"),
      copyButton(() => code.textContent, "Copy the code")),
  );
  pre.replaceWith(frame);
  pre.tabIndex = 0;
  pre.setAttribute("role", "region");
  pre.setAttribute("aria-label", "Code");
  frame.append(pre);
}

const modules = new Map();

// Returns the module that `load` imports, once; null if that fails, for example without the server.
async function imported(name, load) {
  if (!modules.has(name)) modules.set(name, load());
  try {
    return await modules.get(name);
  } catch {
    modules.delete(name);
    return null;
  }
}

// Highlights the code and typesets the formulas in an element, whose text is complete.
export async function finish(element) {
  const blocks = [...element.querySelectorAll("pre > code")];
  const formulas = [...element.querySelectorAll("code.tex")];
  if (blocks.length) {
    const highlighter = await imported("highlight", () => import("./highlight.min.js"));
    if (highlighter) for (const code of blocks) colour(highlighter.default, code);
  }
  if (formulas.length) {
    const typesetter = await imported("katex", () => import("./katex.min.js"));
    if (typesetter) for (const code of formulas) set(globalThis.katex, code);
  }
}

function colour(highlight, code) {
  const language = languageOf(code);
  const text = code.textContent;
  if (!highlight.getLanguage(language) || text.length > MAX_HIGHLIGHTED) return;
  const { value } = highlight.highlight(text, { language, ignoreIllegals: true });
  const pure = { ALLOWED_TAGS: ["span"], ALLOWED_ATTR: ["class"], RETURN_DOM_FRAGMENT: true };
  code.replaceChildren(purify.sanitize(value, pure));
}

function set(katex, code) {
  const displayMode = code.classList.contains("display");
  const place = h("span", displayMode ? { class: "formula", tabindex: "0", role: "region", "aria-label": "Formula" } : {});
  const options = { displayMode, trust: false, strict: "ignore", maxSize: 20, maxExpand: 200 };
  try {
    katex.render(code.textContent, place, { ...options, throwOnError: true });
  } catch {
    return; // an invalid formula stays as source
  }
  code.replaceWith(place);
}
