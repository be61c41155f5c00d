// Views of messages. While an answer is streamed, its view is updated at most every 80 ms.

import { callView, resultView } from "./calls.js";
import { button, copyButton, h, icon, number, replace } from "./dom.js";
import { fileView } from "./files.js";
import { finish, rendered } from "./markdown.js";
import { shortName } from "./models.js";

const EVERY = 80; // ms between two renderings of a streamed answer

export class MessageView {
  constructor(message, actions) {
    this.message = message;
    this.actions = actions;
    this.thoughts = h("details", { class: "thoughts", hidden: true },
      h("summary", {}, h("span", { class: "thoughts-title" }, "Thoughts"), icon("down")), h("div", { class: "thoughts-text" }));
    this.body = h("div", { class: "body" });
    this.calls = h("div", { class: "calls" });
    this.progress = h("div", { class: "progress", hidden: true });
    this.error = h("div", { class: "error", role: "alert", hidden: true });
    this.foot = h("div", { class: "foot" });
    const names = { user: "You", assistant: "Answer", tool: "Result of a tool" };
    this.element = h("article", { class: `message ${message.role}`, "aria-label": names[message.role] },
      this.thoughts, this.progress, this.body, this.calls, this.error, this.foot);
    this.draw(false);
  }

  // Schedules drawing after a change of the answer.
  changed() {
    this.due ??= setTimeout(() => {
      this.due = null;
      this.draw(true);
    }, EVERY);
  }

  // Draws the complete answer. The promise is fulfilled when its code and formulas are drawn, too.
  done() {
    clearTimeout(this.due);
    this.due = null;
    this.draw(false);
    return this.finished;
  }

  draw(running) {
    this.running = running;
    const { message } = this;
    this.element.classList.toggle("running", running);
    this.drawThoughts();
    this.drawBody();
    this.drawBusy();
    this.drawCalls();
    this.drawProgress();
    this.error.hidden = !message.error;
    this.error.textContent = message.error ?? "";
    this.drawFoot();
  }

  // Marks the message as busy until its text is complete, and its code and formulas are drawn.
  drawBusy() {
    const { running, finished } = this;
    this.element.setAttribute("aria-busy", String(running || Boolean(finished)));
    if (running) return;
    finished?.then(() => {
      if (finished === this.finished && !this.running) this.element.setAttribute("aria-busy", "false");
    });
  }

  drawFoot() {
    replace(this.foot, this.running || this.handled ? [] : this.footer());
  }

  drawCalls() {
    const calls = (this.message.calls ?? []).filter(Boolean);
    replace(this.calls, calls.map((call) => callView(call, call === this.handled?.call ? this.handled : null)));
  }

  // Shows that one of the calls is being handled, as described at `callView`; null: no call is.
  follow(state) {
    const again = state && this.handled?.call === state.call && Boolean(state.answer) === Boolean(this.handled.answer);
    this.handled = state;
    if (again) {
      this.dueCalls ??= setTimeout(() => {
        this.dueCalls = null;
        this.drawCalls();
      }, EVERY);
      return;
    }
    this.drawCalls();
    this.drawFoot();
  }

  drawThoughts() {
    const { reasoning = "", content } = this.message;
    this.thoughts.hidden = !reasoning;
    if (!reasoning) return;
    const [summary, place] = this.thoughts.children;
    const thinking = this.running && !content;
    summary.firstChild.textContent = thinking ? "Thinking …" : "Thoughts";
    this.thoughts.classList.toggle("active", thinking);
    if (place.textContent !== reasoning) place.textContent = reasoning;
  }

  drawBody() {
    const { role, content, files } = this.message;
    if (role !== "assistant") {
      replace(this.body,
        files?.length && h("div", { class: "files" }, files.map((each) => fileView(each))),
        role === "tool" ? resultView(this.message) : h("div", { class: "text" }, content));
      return;
    }
    if (this.drawn === content && this.complete === !this.running) return;
    this.drawn = content;
    this.complete = !this.running;
    const waiting = this.running && !content && !this.message.reasoning && !this.message.calls;
    this.body.replaceChildren(waiting ? h("span", { class: "waiting", "aria-label": "Waiting" }) : rendered(content));
    if (!this.running) this.finished = finish(this.body).catch((error) => console.error(error));
  }

  drawProgress() {
    const progress = this.running ? this.message.progress : null;
    const shown = progress && progress.total > 0 && progress.processed < progress.total;
    this.progress.hidden = !shown;
    if (!shown) return;
    const { total, processed, cache = 0 } = progress;
    replace(this.progress,
      h("span", {}, `Reading the prompt: ${number(processed)} of ${number(total)} tokens`, cache ? `, ${number(cache)} of them cached` : ""),
      h("progress", { max: total, value: processed, "aria-label": "Reading the prompt" }));
  }

  footer() {
    const { message, actions } = this;
    const parts = [];
    const among = actions.siblings(message);
    if (among.length > 1) {
      const at = among.indexOf(message);
      parts.push(h("span", { class: "branches" },
        button("left", "Previous branch", () => actions.show(among[at - 1]), { disabled: at === 0 }),
        h("span", { "aria-label": `Branch ${at + 1} of ${among.length}` }, `${at + 1}/${among.length}`),
        button("right", "Next branch", () => actions.show(among[at + 1]), { disabled: at === among.length - 1 })));
    }
    parts.push(copyButton(() => message.content, "Copy the message"));
    if (message.role === "user") parts.push(button("edit", "Edit", () => this.edit()));
    if (message.role === "assistant") {
      parts.push(button("edit", "Edit the answer", () => this.edit()));
      parts.push(button("redo", "Generate again", () => actions.regenerate(message)));
    }
    parts.push(button("trash", "Delete from here on", () => actions.remove(message)));
    return message.role === "assistant" ? [...parts, this.facts()] : parts;
  }

  facts() {
    const { model, timings, finish: reason } = this.message;
    const parts = [];
    if (model) parts.push(shortName(model));
    if (timings?.predicted_n) {
      parts.push(`${number(timings.predicted_n)} tokens`);
      if (timings.predicted_per_second) parts.push(`${number(timings.predicted_per_second)} tokens/s`);
    }
    if (reason === "length") parts.push("cut off: the token limit was reached");
    if (reason === "stopped") parts.push("stopped");
    return h("span", { class: "facts" }, parts.join(" · "));
  }

  edit() {
    const area = h("textarea", { class: "edit-text", rows: 3, value: this.message.content, "aria-label": "The message" });
    const user = this.message.role === "user";
    const end = (save) => {
      this.drawn = undefined;
      if (save) this.actions.edit(this.message, area.value);
      else this.draw(false);
    };
    area.addEventListener("keydown", (event) => {
      if (event.key === "Escape") end(false);
      if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) end(true);
    });
    replace(this.body, area, h("div", { class: "actions" },
      h("button", { type: "button", class: "plain", onclick: () => end(false) }, "Cancel"),
      h("button", { type: "button", class: "primary", onclick: () => end(true) }, user ? "Send" : "Keep")));
    replace(this.foot);
    area.focus();
  }
}
