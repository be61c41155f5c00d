// One turn of the model: its answers, and the calls of tools between them, up to an answer without
// calls.

import { append, path, waiting } from "./conversation.js";
import { notify, visible } from "./dom.js";
import { generate, requestBody } from "./generate.js";
import { MessageView } from "./messages.js";
import { functionsOf, setting } from "./settings.js";

export const ROUNDS = 10; // of calls in a turn, unless the user sets another number

// The reason for ending a turn whose conversation was deleted.
export const DELETED = "deleted";

export class Turn {
  answer = null; // the model's message that is generated, or whose calls are handled
  view = null;

  // `shown` is called when a message was added, `asked` with a question to the user, and `answered` when
  // the user has answered it.
  constructor(conversation, models, tools, actions, { shown, asked, answered }) {
    Object.assign(this, { conversation, models, tools, actions, shown, asked, answered });
    this.controller = new AbortController();
    this.stopped = new Promise((resolve) => this.controller.signal.addEventListener("abort", resolve, { once: true }));
    this.at = conversation.leaf;
  }

  abort(reason) {
    this.controller.abort(reason);
  }

  get deleted() {
    return this.controller.signal.reason === DELETED;
  }

  async run() {
    const limit = Math.max(1, Math.floor(setting("toolRounds", this.conversation)) || ROUNDS);
    for (let rounds = 0; ;) {
      const calls = waiting(this.messages);
      if (calls.length && rounds === limit) {
        notify(`The model has called tools in ${limit} answers in a row. You can let it continue.`);
        return;
      }
      if (calls.length && !(await this.handle(calls))) return;
      if (calls.length) rounds += 1;
      await this.generate();
      if (!this.answer.calls?.length || ["stopped", "error", "length"].includes(this.answer.finish)) return;
    }
  }

  get messages() {
    return path(this.conversation, this.at);
  }

  add(fields) {
    const added = append(this.conversation, this.at, fields);
    this.at = added.id;
    return added;
  }

  async generate() {
    const { conversation, models } = this;
    const before = this.messages;
    this.answer = this.add({ role: "assistant", model: models.name });
    this.view = new MessageView(this.answer, this.actions);
    this.view.draw(true);
    this.shown(true);
    try {
      await Promise.race([this.tools.listed, this.stopped]);
      const body = requestBody(conversation, before, models.sent, this.tools.offered(conversation));
      await generate(body, this.answer, this.controller.signal, () => this.view.changed());
    } catch (error) {
      this.answer.error = error.message;
      this.answer.finish = "error";
    }
    this.finished = this.view.done();
  }

  // Handles the calls of an answer one after the other. Returns false if the turn ends here, since the
  // user stopped it or enters a result.
  async handle(calls) {
    const { conversation, tools, controller: { signal } } = this;
    this.answer = this.messages.findLast((each) => each.role === "assistant");
    if (this.view?.message !== this.answer) {
      this.view = new MessageView(this.answer, this.actions);
      this.shown(true);
    }
    let whole = true;
    for (const call of calls) {
      if (entered(call, conversation, tools)) {
        whole = false;
        continue;
      }
      const result = await tools.handle(call, conversation, {
        ask: (tool) => this.ask(call, tool),
        changed: (output) => this.view.follow({ call, output }),
        signal,
      });
      this.view.follow(null);
      if (!result || this.deleted) return false;
      this.add({ role: "tool", callId: call.id, name: call.name, ...result });
      this.shown(false);
      if (signal.aborted) return false;
    }
    return whole;
  }

  // Asks the user for consent to a call, below the call. Returns null after the end of the turn.
  ask(call, tool) {
    return new Promise((resolve) => {
      const answer = (value) => {
        this.answered();
        resolve(value);
      };
      this.stopped.then(() => resolve(null));
      this.view.follow({ call, tool, answer });
      this.asked(`The model asks to call ${visible(call.name, 200)}`);
    });
  }
}

// Whether the user enters the result of a call, since the page can't run a function of the request.
export function entered(call, conversation, tools) {
  return functionsOf(conversation).has(call.name) || !tools.offered(conversation).length;
}
