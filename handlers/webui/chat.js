// The chat: the messages of the open conversation, and the user's actions on them.

import { Composer } from "./composer.js";
import { append, follow, message, newConversation, path, prune, siblings } from "./conversation.js";
import { h, notify, number, replace } from "./dom.js";
import { generate, requestBody } from "./generate.js";
import { MessageView } from "./messages.js";
import { missed } from "./misses.js";
import { shortName } from "./models.js";
import { hasOwn, set, setting } from "./settings.js";
import * as store from "./store.js";

// The reason for ending an answer whose conversation was deleted.
export const DELETED = "deleted";

export class Chat extends EventTarget {
  conversation = newConversation();
  atEnd = true;
  running = new Map(); // by conversation: the AbortController of its answer

  constructor(place, models) {
    super();
    this.models = models;
    this.log = h("div", { class: "log", role: "log", "aria-label": "Messages", "aria-live": "off" });
    this.scroller = h("div", { class: "scroller", tabindex: "-1" }, this.log);
    this.scroller.addEventListener("scroll", () => { this.atEnd = this.isAtEnd(); }, { passive: true });
    this.results = h("form", { class: "results", hidden: true });
    this.composer = new Composer(models, {
      send: (text, files) => this.send(text, files),
      stop: () => this.running.get(this.conversation.id)?.abort(),
      thinking: () => setting("thinking", this.conversation) || "auto",
      setThinking: (value) => { set("thinking", value, this.conversation); this.changedSettings(); },
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
    this.views = new Map();
    const actions = {
      siblings: (each) => siblings(this.conversation, each),
      show: (each) => this.showBranch(each),
      regenerate: (each) => this.regenerate(each),
      edit: (each, text) => this.edit(each, text),
      remove: (each) => this.removeMessage(each),
    };
    const live = this.live;
    replace(this.log, shown.length ? shown.map((each) => {
      const running = live?.answer === each;
      const view = running ? live.view : new MessageView(each, actions);
      this.views.set(each.id, view);
      return view.element;
    }) : this.welcome());
    this.actions = actions;
    this.drawState();
  }

  welcome() {
    const { models } = this;
    return h("div", { class: "welcome" }, h("h2", {}, "What can I do for you?"),
      h("p", { class: "hint" }, models.name ? `You are talking to ${shortName(models.name)}.` : "There is no model yet."));
  }

  get live() {
    const controller = this.running.get(this.conversation.id);
    return controller?.live ?? null;
  }

  drawState() {
    this.composer.setRunning(this.running.has(this.conversation.id));
    this.composer.drawThinking();
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

  // Shows fields for the results of the model's calls, since the page itself runs no tools.
  drawResults() {
    const last = path(this.conversation).at(-1);
    const calls = (last?.role === "assistant" && last.calls?.filter(Boolean)) || [];
    this.results.hidden = !calls.length || this.running.has(this.conversation.id);
    if (this.results.hidden) {
      replace(this.results);
      return;
    }
    const areas = calls.map((call, at) => h("textarea", { id: `result-${at}`, rows: 1, class: "mono" }));
    replace(this.results,
      calls.map((call, at) => h("div", { class: "field" },
        h("label", { for: `result-${at}` }, `Result of ${call.name}`), areas[at])),
      h("div", { class: "actions" }, h("button", { type: "submit", class: "plain compact" }, "Send the results")));
    this.results.onsubmit = (event) => {
      event.preventDefault();
      let parent = last.id;
      calls.forEach((call, at) => {
        parent = append(this.conversation, parent, { role: "tool", callId: call.id, content: areas[at].value }).id;
      });
      this.answer();
    };
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
    return this.conversation.id === id ? this.conversation : this.running.get(id)?.live.conversation;
  }

  // Asks the model for the next message of the conversation.
  async answer() {
    const { conversation, models } = this;
    const before = path(conversation);
    const parent = message(conversation, conversation.leaf);
    const answer = append(conversation, parent?.id ?? null, { role: "assistant", model: models.name });
    const controller = new AbortController();
    this.running.set(conversation.id, controller);
    this.draw();
    const view = this.views.get(answer.id);
    controller.live = { conversation, answer, view };
    view.draw(true);
    this.scrollDown(true);
    this.save(conversation);
    const watching = new ResizeObserver(() => this.conversation === conversation && this.scrollDown());
    watching.observe(view.element);
    try {
      await generate(requestBody(conversation, before, models.sent), answer, controller.signal, () => view.changed());
    } catch (error) {
      answer.error = error.message;
      answer.finish = "error";
    }
    this.running.delete(conversation.id);
    // The fonts of formulas are loaded last.
    view.done()?.then(() => document.fonts.ready).then(() => requestAnimationFrame(() => watching.disconnect()));
    if (this.conversation === conversation) {
      this.drawState();
      this.scrollDown();
      this.announcer.textContent = answer.error ? "" : answer.content.slice(0, 2000);
    }
    if (controller.signal.reason !== DELETED) await this.save(conversation);
    if (!models.contextSize) models.describe();
  }
}
