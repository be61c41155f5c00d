// The server's models, the chosen one, and its properties.

import { ApiError, events, json, request } from "./api.js";
import { h, button, icon, notify, number, percent, redraw } from "./dom.js";

const PLACE = "specllama.model";
const AGAIN = 5000; // ms until the stream of events is requested again

export class Models extends EventTarget {
  list = [];
  router = false;
  name = localStorage.getItem(PLACE) ?? "";
  server = {}; // the properties of the server
  props = {}; // the properties of the chosen model, as far as they are known
  progress = new Map(); // by model, of loading or downloading

  // Reads the properties of the server.
  async identify() {
    this.server = await json("props").catch((error) => {
      if (error instanceof ApiError && [403, 503].includes(error.status)) return {};
      throw error;
    });
    this.router = this.server.role === "router";
  }

  async start() {
    await this.refresh();
    this.watch();
  }

  async refresh() {
    const { data } = await json("v1/models");
    this.list = data.filter((each) => typeof each?.id === "string");
    if (!this.list.some((each) => each.id === this.name)) {
      this.name = (this.list.find(isLoaded) ?? this.list[0])?.id ?? "";
    }
    await this.describe();
  }

  // The name for requests. A server of one model accepts every name.
  get sent() {
    return this.name;
  }

  get current() {
    return this.list.find((each) => each.id === this.name) ?? null;
  }

  status(name) {
    return this.list.find((each) => each.id === name)?.status?.value ?? "unloaded";
  }

  async choose(name) {
    this.name = name;
    localStorage.setItem(PLACE, name);
    await this.describe();
  }

  // Reads the properties of the chosen model, without loading it.
  async describe() {
    const { name } = this;
    let props = {};
    if (name && (!this.router || isLoaded(this.current))) {
      const query = this.router ? `?model=${encodeURIComponent(name)}&autoload=false` : "";
      props = await json(`props${query}`, { quiet: true }).catch(() => ({}));
    }
    if (name !== this.name) return;
    this.props = props;
    this.changed();
  }

  get modalities() {
    if (this.props.modalities) return this.props.modalities;
    const kinds = this.current?.architecture?.input_modalities ?? [];
    return { vision: kinds.includes("image"), audio: kinds.includes("audio") };
  }

  // Whether the model can think, guessed from its chat template; false without a template.
  get thinks() {
    return /think|reason/i.test(this.props.chat_template ?? "");
  }

  get contextSize() {
    return this.props.default_generation_settings?.n_ctx ?? this.current?.meta?.n_ctx ?? 0;
  }

  get defaults() {
    return this.props.default_generation_settings?.params ?? {};
  }

  changed() {
    this.dispatchEvent(new Event("change"));
  }

  async act(action, name) {
    try {
      await json(`models/${action}`, { body: { model: name } });
    } catch (error) {
      notify(`${name}: ${error.message}`, "error");
    }
  }

  // Follows the events of models as long as the page is open.
  async watch() {
    for (;;) {
      try {
        const response = await request("models/sse", { quiet: true });
        for await (const event of events(response)) await this.take(event);
      } catch (error) {
        if (error.status === 404 || error.status === 501) return;
      }
      await new Promise((resolve) => setTimeout(resolve, AGAIN));
      await this.refresh().catch(() => {});
    }
  }

  async take({ model, event, data }) {
    const known = this.list.find((each) => each.id === model);
    if (event === "model_remove" || event === "models_reload" || (!known && model !== "*")) {
      await this.refresh();
      return;
    }
    if (!known) return;
    const { status, progress } = data ?? {};
    const before = known.status?.value;
    if (status) known.status = { ...known.status, value: status };
    if (Number.isFinite(progress?.value)) this.progress.set(model, progress.value);
    if (status && status !== "loading" && status !== "downloading") this.progress.delete(model);
    if (status === "unloaded" && data.exit_code) notify(`${model} could not be loaded`, "error");
    // A loaded model has more properties, such as the size of its context.
    if (status === "loaded" && before !== "loaded") await this.refresh();
    else this.changed();
  }
}

// The name to show: that of a file without its folders.
export const shortName = (name) => (name.endsWith(".gguf") ? name.split(/[/\\]/).at(-1) : name);

export const isLoaded = (model) => ["loaded", "sleeping", undefined].includes(model?.status?.value);

// Returns the button in the header that shows the chosen model, with the list that it opens.
export function modelPicker(models) {
  const label = h("span", { class: "model-name" });
  const dot = h("span", { class: "dot" });
  const list = h("div", { id: "model-list", class: "popover", hidden: true, role: "group", "aria-label": "Models" });
  const opener = h("button", {
    type: "button", class: "picker", "aria-expanded": "false", "aria-controls": "model-list",
    onclick: () => toggle(list.hidden),
  }, dot, label, icon("down"));
  const place = h("div", { class: "picker-place" }, opener, list);

  function toggle(open) {
    list.hidden = !open;
    opener.setAttribute("aria-expanded", String(open));
    if (open) list.querySelector("button")?.focus();
  }
  document.addEventListener("click", (event) => place.contains(event.target) || toggle(false));
  place.addEventListener("keydown", (event) => {
    if (event.key === "Escape" && !list.hidden) {
      toggle(false);
      opener.focus();
    }
  });

  function draw() {
    const status = models.status(models.name);
    label.textContent = shortName(models.name) || "No model";
    dot.className = `dot ${models.router ? status : "loaded"}`;
    opener.title = models.router ? `${models.name}: ${status}` : models.name;
    opener.setAttribute("aria-label", `Model: ${models.name || "none"}${models.router ? `, ${status}` : ""}`);
    redraw(list, () => models.list.map((each) => row(models, each, () => { toggle(false); opener.focus(); })));
  }
  models.addEventListener("change", draw);
  draw();
  return place;
}

// After loading, the first evaluation reads weights that are mapped from their file.
const work = (status, progress) => (status === "loading" && progress >= 1 ? "warming up" : `${status} ${percent(progress)}`);

function row(models, model, close) {
  const status = models.status(model.id);
  const busy = status === "loading" || status === "downloading";
  const progress = models.progress.get(model.id);
  const size = model.meta?.n_params ? `${number(model.meta.n_params)} parameters` : "";
  const note = model.status?.failed ? "failed to load" : busy && progress !== undefined ? work(status, progress) : status;
  const [action, word] = busy || isLoaded(model) ? ["unload", "Unload"] : ["load", "Load"];
  return h("div", { class: "model-row" },
    h("button", {
      type: "button", class: "model-choice", "data-key": `choose ${model.id}`,
      "aria-pressed": String(model.id === models.name),
      onclick: async () => { close(); await models.choose(model.id); },
    },
      h("span", { class: `dot ${status}` }),
      h("span", { class: "model-text" }, h("span", { class: "model-id" }, model.id),
        h("small", {}, [models.router ? note : "", size].filter(Boolean).join(" · ")))),
    models.router && h("button", {
      type: "button", class: "plain compact", "data-key": `act ${model.id}`,
      "aria-label": `${word} ${model.id}`, onclick: () => models.act(action, model.id),
    }, word),
    busy && h("progress", { max: 1, value: progress ?? null, "aria-label": `${status} ${model.id}` }));
}
