// The page: its parts, and the navigation between them.

import { Chat } from "./chat.js";
import { exported, imported, newConversation } from "./conversation.js";
import { agreed, button, h, icon, notify, replace, save } from "./dom.js";
import { Models, modelPicker } from "./models.js";
import { ServerView } from "./server.js";
import { applyTheme, isDark, offer, openSettings, set } from "./settings.js";
import { Sidebar } from "./sidebar.js";
import * as store from "./store.js";
import { Tools } from "./tools.js";
import { toolFields } from "./toolfields.js";
import { DELETED } from "./turn.js";

const OPEN = "specllama.conversation";
const element = (id) => document.getElementById(id);

applyTheme();
const models = new Models();
const tools = new Tools();
const chat = new Chat(element("chat"), models, tools);
const server = new ServerView(element("server"), models);
const sidebar = new Sidebar(element("sidebar"), {
  create: () => { chat.open(newConversation()); showTab("chat"); chat.composer.area.focus(); closeSidebar(); },
  open: (conversation) => { chat.open(conversation); showTab("chat"); closeSidebar(); },
  remove: removeConversation,
  rename: async (conversation, title) => {
    conversation.title = title;
    await chat.save(conversation);
  },
  close: closeSidebar,
});
let conversations = [];

// ---- the header ---------------------------------------------------------------------------------

const menu = button("menu", "Conversations", () => toggleSidebar(), { class: "icon-button", "aria-expanded": "false" });
const tabs = Object.fromEntries([["chat", "Chat"], ["server", "Server"]].map(([name, label]) =>
  [name, h("button", { type: "button", class: "tab", onclick: () => { location.hash = name === "server" ? "server" : ""; } }, label)]));
const theme = button("moon", "Dark", () => { set("theme", isDark() ? "light" : "dark"); drawTheme(); });

element("top").append(h("h1", { class: "offscreen" }, "specllama"), menu, modelPicker(models), h("span", { class: "spacer" }),
  h("nav", { class: "tabs", "aria-label": "Views" }, Object.values(tabs)), theme,
  button("settings", "Settings", () => showSettings()));

function showSettings(toolsFirst = false) {
  openSettings(models.defaults, chat.conversation, () => chat.changedSettings(), [
    ["Export all", () => save("conversations.json", exported(conversations))],
    ["Import", importFile],
    ["Delete all", removeAll, "plain danger"],
  ], (one) => toolFields(tools, one), toolsFirst);
  tools.refresh();
}
chat.addEventListener("tools", () => showSettings(true));

function drawTheme() {
  applyTheme();
  const [name, label] = isDark() ? ["sun", "Light colours"] : ["moon", "Dark colours"];
  replace(theme, icon(name));
  theme.title = label;
  theme.setAttribute("aria-label", label);
}
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawTheme);

function showTab(name) {
  for (const each of ["chat", "server"]) {
    element(each).hidden = each !== name;
    if (each === name) tabs[each].setAttribute("aria-current", "page");
    else tabs[each].removeAttribute("aria-current");
  }
  if (name === "chat" && location.hash) history.replaceState(null, "", location.pathname + location.search);
  server.show(name === "server");
}
addEventListener("hashchange", () => showTab(location.hash === "#server" ? "server" : "chat"));

// ---- the list of conversations --------------------------------------------------------------------

const narrow = matchMedia("(max-width: 760px)");

function toggleSidebar() {
  const body = document.body.classList;
  const open = narrow.matches ? body.toggle("side-open") : !body.toggle("side-closed");
  menu.setAttribute("aria-expanded", String(open));
  drawSidebar();
}

function closeSidebar() {
  document.body.classList.remove("side-open");
  drawSidebar();
}

// A hidden sidebar can't be reached by keys.
function drawSidebar() {
  const body = document.body.classList;
  const open = narrow.matches ? body.contains("side-open") : !body.contains("side-closed");
  element("sidebar").inert = !open;
  menu.setAttribute("aria-expanded", String(open));
}
narrow.addEventListener("change", drawSidebar);
element("shade").addEventListener("click", closeSidebar);

async function refresh() {
  conversations = (await store.all()).map((each) => chat.held(each.id) ?? each);
  sidebar.show(conversations, chat.conversation.id);
}

async function removeConversation(conversation) {
  const wasShown = conversation.id === chat.conversation.id;
  notify(`Deleted: ${conversation.title || "Untitled"}`, "info", async () => {
    await store.put(conversation);
    if (wasShown && !chat.conversation.messages.length) chat.open(conversation);
    await refresh();
    chat.composer.area.focus();
  });
  await forget([conversation]);
}

async function removeAll(dialog) {
  const count = `${conversations.length} conversation${conversations.length === 1 ? "" : "s"}`;
  const text = "They can't be restored unless you export them first.";
  if (conversations.length && !(await agreed(`Delete ${count}?`, text, "Delete"))) return;
  await forget(conversations);
  dialog.close();
}

async function forget(some) {
  for (const { id } of some) {
    chat.running.get(id)?.abort(DELETED);
    await store.remove(id);
    if (id === chat.conversation.id) chat.open(newConversation());
  }
  await refresh();
}

function importFile(dialog) {
  const input = h("input", { type: "file", accept: "application/json,.json", "aria-label": "File", class: "offscreen", onchange: async () => {
    try {
      const found = imported(await input.files[0].text());
      for (const each of found) await store.put(each);
      await refresh();
      notify(`${found.length} conversation${found.length === 1 ? "" : "s"} imported`);
    } catch (error) {
      notify(`Import failed: ${error.message}`, "error");
    }
    input.remove();
    dialog.close();
  } });
  dialog.append(input);
  input.click();
}

chat.addEventListener("open", () => {
  localStorage.setItem(OPEN, chat.conversation.id);
  sidebar.show(conversations, chat.conversation.id);
});
chat.addEventListener("saved", () => {
  localStorage.setItem(OPEN, chat.conversation.id);
  refresh();
});

// ---- keys -------------------------------------------------------------------------------------------

addEventListener("keydown", (event) => {
  if (document.querySelector("dialog[open]")) return;
  const command = event.ctrlKey || event.metaKey;
  if (command && event.shiftKey && event.key.toLowerCase() === "o") {
    event.preventDefault();
    sidebar.actions.create();
  } else if (command && event.key.toLowerCase() === "k") {
    event.preventDefault();
    if (element("sidebar").inert) toggleSidebar();
    sidebar.search.focus();
  } else if (event.key === "Escape" && document.body.classList.contains("side-open")) {
    closeSidebar();
    menu.focus();
  } else if (event.key === "Escape" && !event.target.closest(".edit-text, .picker-place, input")) {
    chat.running.get(chat.conversation.id)?.abort();
  }
});

// ---- the start --------------------------------------------------------------------------------------

async function start() {
  drawTheme();
  drawSidebar();
  showTab(location.hash === "#server" ? "server" : "chat");
  await refresh();
  const last = conversations.find((each) => each.id === localStorage.getItem(OPEN));
  if (last) chat.open(last);
  if (!(await store.isKept())) notify("This browser can't store conversations: they are lost when you close the page.");
  chat.composer.area.focus();
  try {
    await models.identify();
    offer(models.server.ui_settings);
    drawTheme();
    await models.start();
    tools.listed = tools.refresh(); // may take some seconds, while the server starts its MCP servers
    await tools.listed;
    document.body.dataset.ready = ""; // for programs that control the page, such as its tests
  } catch (error) {
    notify(`The server can't be used: ${error.message}`, "error");
  }
}

start();
