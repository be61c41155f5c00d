// The chat: the messages of the open conversation, and the user's actions on them.

import { Composer } from "./composer.js";
import { append, follow, newConversation, path, prune, siblings, waiting } from "./conversation.js";
import { h, notify, number, replace, visible } from "./dom.js";
import { MessageView } from "./messages.js";
import { missed } from "./misses.js";
import { shortName } from "./models.js";
import { hasOwn, set, setting } from "./settings.js";
import * as store from "./store.js";
import { DECLINED } from "./tools.js";
import { entered, Turn } from "./turn.js";

export class Chat extends EventTarget {
  conversation = newConversation();
  atEnd = true;
  running = new Map(); // by conversation: its turn
  actions = {
    siblings: (each) => siblings(this.conversation, each),
    show: (each) => this.showBranch(each),
    regenerate: (each) => this.regenerate(each),
    edit: (each, text) => this.edit(each, text),
    remove: (each) => this.removeMessage(each),
  };

  constructor(place, models, tools) {
    super();
    this.models = models;
    this.tools = tools;
    this.log = h("div", { class: "log", role: "log", "aria-label": "Messages", "aria-live": "off" });
    this.scroller = h("div", { class: "scroller", tabindex: "-1" }, this.log);
    this.scroller.addEventListener("scroll", () => { this.atEnd = this.isAtEnd(); }, { passive: true });
    this.results = h("form", { class: "results", hidden: true });
    this.composer = new Composer(models, tools, {
      send: (text, files) => this.send(text, files),
      stop: () => this.running.get(this.conversation.id)?.abort(),
      thinking: () => setting("thinking", this.conversation) || "auto",
      setThinking: (value) => { set("thinking", value, this.conversation); this.changedSettings(); },
      offered: () => tools.offered(this.conversation).length,
      chooseTools: () => this.dispatchEvent(new Event("tools")),
    });
    this.announcer = h("div", { class: "offscreen", "aria-live": "polite" });
    this.usage = h("div", { class: "usage" });
    place.append(this.scroller, h("div", { class: "dock" }, this.results, this.composer.element, this.usage), this.announcer);
    // Keeps the last message above a phone's keyboard and above the fields for results.
    new ResizeObserver(() => this.scrollDown()).observe(this.scroller);
    models.addEventListener("change", () => {
      this.drawUsage();
      if (!this.conversation.messages.length) this.draw();
    });
    tools.addEventListener("change", () => this.drawState());
    this.draw();
  }

  open(conversation) {
    this.conversation = conversation;
    this.draw();
    this.scrollDown(true);
    this.dispatchEvent(new Event("open"));
  }

  draw() {
    const shown = path(this.conversation);
    const live = this.running.get(this.conversation.id);
    replace(this.log, shown.length ? shown.map((each) => {
      const view = live?.answer === each ? live.view : new MessageView(each, this.actions);
      return view.element;
    }) : this.welcome());
    this.drawState();
  }

  welcome() {
    const { models } = this;
    return h("div", { class: "welcome" }, h("h2", {}, "What can I do for you?"),
      h("p", { class: "hint" }, models.name ? `You are talking to ${shortName(models.name)}.` : "There is no model yet."));
  }

  drawState() {
    this.composer.setRunning(this.running.has(this.conversation.id));
    this.composer.drawThinking();
    this.composer.drawTools();
    this.drawUsage();
    this.drawResults();
  }

  // Shows the used part of the context, and the cached part of the last prompt.
  drawUsage() {
    const answer = path(this.conversation).findLast((each) => each.role === "assistant" && each.timings);
    const size = this.models.contextSize;
    const own = hasOwn(this.conversation) ? h("span", {}, "Settings of its own") : null;
    if (!answer) {
      replace(this.usage, size ? `Context: ${number(size)} tokens` : "", own);
      return;
    }
    const { cache_n: cached = 0, prompt_n: read = 0, predicted_n: made = 0, cache_miss_reason: reason } = answer.timings;
    const used = cached + read + made;
    const share = cached + read ? Math.round((100 * cached) / (cached + read)) : 0;
    replace(this.usage,
      size ? h("meter", { min: 0, max: size, high: 0.9 * size, value: used, "aria-label": "Used part of the context" }) : null,
      h("span", {}, `Context ${number(used)}${size ? ` of ${number(size)}` : ""} tokens`),
      h("span", { title: reason ? `Not cached from token ${number(cached)} on: ${missed(reason)}` : "Tokens of the last prompt that were in the cache" },
        `${share} % of the prompt cached`),
      own);
  }

  // Shows fields for the results of the calls that the page can't run itself, and a button for the
  // others, which wait after the end of their turn.
  drawResults() {
    const calls = this.running.has(this.conversation.id) ? [] : waiting(path(this.conversation));
    this.results.hidden = !calls.length;
    if (this.results.hidden) {
      replace(this.results);
      return;
    }
    const fields = calls.filter((call) => entered(call, this.conversation, this.tools)).map((call, at) =>
      ({ call, area: h("textarea", { id: `result-${at}`, rows: 1, class: "mono" }) }));
    const others = calls.filter((call) => fields.every((field) => field.call !== call));
    replace(this.results,
      fields.map(({ call, area }) => h("div", { class: "field" },
        h("label", { for: area.id }, `Result of ${visible(call.name, 200)}`), area)),
      others.length > 0 && h("p", { class: "hint" }, "Calls that wait: ", others.map((call) => visible(call.name, 200)).join(", ")),
      h("div", { class: "actions" },
        h("button", { type: "submit", class: "plain compact" }, fields.length ? "Send the results" : "Continue")));
    this.results.onsubmit = (event) => {
      event.preventDefault();
      for (const { call, area } of fields) this.addResult(call, { content: area.value });
      this.answer();
    };
  }

  addResult(call, fields) {
    append(this.conversation, this.conversation.leaf, { role: "tool", callId: call.id, name: call.name, ...fields });
  }

  // Applies changed settings of this or of all conversations. A conversation without messages isn't
  // stored yet.
  changedSettings() {
    this.drawState();
    if (this.conversation.messages.length) this.save();
  }

  isAtEnd() {
    const { scrollHeight, scrollTop, clientHeight } = this.scroller;
    return scrollHeight - scrollTop - clientHeight < 60;
  }

  // Shows the end of the messages, unless the user has scrolled back.
  scrollDown(force = false) {
    if (force) this.atEnd = true;
    if (this.atEnd) this.scroller.scrollTop = this.scroller.scrollHeight;
  }

  async save(conversation = this.conversation) {
    try {
      await store.put(conversation);
    } catch (error) {
      notify(`The conversation can't be stored: ${error.message}`, "error");
    }
    this.dispatchEvent(new Event("saved"));
  }

  send(text, files) {
    if (this.running.has(this.conversation.id)) return;
    // Without results of all calls, the next request isn't valid.
    for (const call of waiting(path(this.conversation))) this.addResult(call, { content: DECLINED, finish: "declined" });
    append(this.conversation, this.conversation.leaf, { role: "user", content: text, ...(files.length ? { files } : {}) });
    this.answer();
  }

  edit(edited, text) {
    if (edited.role === "assistant") {
      edited.content = text;
      this.draw();
      this.save();
      return;
    }
    if (this.running.has(this.conversation.id)) return;
    append(this.conversation, edited.parent, { role: "user", content: text, ...(edited.files ? { files: edited.files } : {}) });
    this.answer();
  }

  regenerate(answered) {
    if (this.running.has(this.conversation.id)) return;
    this.conversation.leaf = answered.parent;
    this.answer();
  }

  showBranch(each) {
    if (this.running.has(this.conversation.id)) return;
    follow(this.conversation, each.id);
    this.draw();
    this.save();
  }

  removeMessage(each) {
    const { id } = this.conversation;
    if (this.running.has(id)) return;
    const restore = prune(this.conversation, each.id);
    notify("Deleted the message and all after it", "info", async () => {
      const conversation = this.held(id) ?? (await store.get(id));
      if (!conversation) return;
      restore(conversation);
      if (conversation === this.conversation) this.draw();
      await this.save(conversation);
    });
    this.draw();
    this.save();
  }

  // Returns the conversation if it is shown or being answered; the stored copy is older then.
  held(id) {
    return this.conversation.id === id ? this.conversation : this.running.get(id)?.conversation;
  }

  // Lets the model answer, with calls of tools.
  async answer() {
    const { conversation, models } = this;
    const isShown = () => this.conversation === conversation;
    const watching = new ResizeObserver(() => isShown() && this.scrollDown());
    const turn = new Turn(conversation, models, this.tools, this.actions, {
      shown: (force) => {
        if (isShown()) {
          this.draw();
          this.scrollDown(force);
        }
        watching.observe(turn.view.element);
        if (!turn.deleted) this.save(conversation);
      },
      asked: (question) => {
        if (isShown()) this.announcer.textContent = question;
        else notify(`${conversation.title}: ${question}`);
      },
      // With the keyboard, the focus moves from the button, which is removed, to the next message.
      answered: () => document.activeElement?.matches("button:focus-visible") && this.composer.area.focus(),
    });
    this.running.set(conversation.id, turn);
    this.tools.refresh(); // for the next turn, since the server's MCP servers come and go
    await turn.run();
    this.running.delete(conversation.id);
    // The fonts of formulas are loaded last.
    turn.finished?.then(() => document.fonts.ready).then(() => requestAnimationFrame(() => watching.disconnect()));
    const { answer } = turn;
    if (isShown()) {
      this.drawState();
      this.scrollDown();
      this.announcer.textContent = answer.error ? "" : answer.content.slice(0, 2000);
    }
    if (!turn.deleted) await this.save(conversation);
    if (!models.contextSize) models.describe();
  }
}
