// The list of conversations in this browser: search, choose, rename and delete.

import { matches } from "./conversation.js";
import { button, h, icon, redraw } from "./dom.js";

const DAY = 86_400_000;

export class Sidebar {
  renaming = false;

  constructor(place, actions) {
    this.actions = actions;
    this.conversations = [];
    this.search = h("input", {
      type: "search", placeholder: "Search", "aria-label": "Search the conversations", oninput: () => this.draw(),
    });
    this.list = h("div", { class: "conversations" });
    place.append(
      h("div", { class: "side-head" }, h("span", { class: "brand" }, "specllama"),
        button("close", "Close the list", actions.close, { class: "icon-button only-narrow" })),
      h("button", { type: "button", class: "new", onclick: actions.create }, icon("plus"), h("span", {}, "New chat")),
      this.search, this.list);
  }

  show(conversations, current) {
    this.conversations = conversations.toSorted((a, b) => b.updated - a.updated);
    this.current = current;
    this.draw();
  }

  draw() {
    redraw(this.list, () => (this.renaming ? null : this.groups())); // the end of renaming draws the list
  }

  // Returns the conversations that match the search, by their age.
  groups() {
    const words = this.search.value.toLowerCase().split(/\s+/).filter(Boolean);
    const found = this.conversations.filter((each) => matches(each, words));
    const groups = Map.groupBy ? Map.groupBy(found, age) : grouped(found);
    if (!found.length) return [h("p", { class: "empty" }, words.length ? "Nothing found" : "No conversations yet")];
    return [...groups].map(([name, members]) => h("section", {},
      h("h2", {}, name), h("ul", {}, members.map((each) => this.item(each)))));
  }

  item(conversation) {
    const title = conversation.title || "Untitled";
    const opener = h("button", {
      type: "button", class: "conversation", title, "data-key": `open ${conversation.id}`,
      "aria-current": conversation.id === this.current ? "true" : null,
      onclick: () => this.actions.open(conversation),
      ondblclick: () => rename(),
    }, title);
    const item = h("li", {}, opener, h("span", { class: "item-actions" },
      button("edit", `Rename ${title}`, () => rename(), { "data-key": `rename ${conversation.id}` }),
      button("trash", `Delete ${title}`, () => this.actions.remove(conversation), { "data-key": `remove ${conversation.id}` })));
    const rename = () => {
      const input = h("input", { type: "text", value: title, "aria-label": "Title", maxlength: 200 });
      let over = false;
      const end = (keep) => {
        if (over) return;
        over = true;
        this.renaming = false;
        if (keep && input.value.trim()) this.actions.rename(conversation, input.value.trim());
        else this.draw();
      };
      input.addEventListener("keydown", (event) => {
        if (event.key === "Enter") end(true);
        if (event.key === "Escape") end(false);
      });
      input.addEventListener("blur", () => end(true));
      this.renaming = true;
      item.replaceChildren(input);
      input.select();
    };
    return item;
  }
}

function age({ updated }) {
  const today = new Date().setHours(0, 0, 0, 0);
  if (updated >= today) return "Today";
  if (updated >= today - DAY) return "Yesterday";
  return updated >= today - 7 * DAY ? "This week" : "Earlier";
}

function grouped(conversations) {
  const groups = new Map();
  for (const each of conversations) {
    const name = age(each);
    if (!groups.has(name)) groups.set(name, []);
    groups.get(name).push(each);
  }
  return groups;
}
