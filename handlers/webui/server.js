// The view of the server: the state and the speed of models, slots and the queue.

import { request, json } from "./api.js";
import { h, number, percent, replace, svg } from "./dom.js";
import { histogram, parse, quantile, value } from "./metrics.js";
import { missed } from "./misses.js";
import { isLoaded } from "./models.js";

const EVERY = 1000; // ms
const KEPT = 60; // samples in each curve
const HISTOGRAMS = [
  ["specllama_time_to_first_token_seconds", "Time to the first token"],
  ["specllama_inter_token_latency_seconds", "Time between tokens"],
  ["specllama_request_queue_seconds", "Wait for a slot"],
  ["specllama_step_seconds", "Steps of the engine"],
];

export class ServerView {
  curves = new Map(); // by model, then by name
  last = new Map(); // the previous sample, by model
  timer = null;

  constructor(place, models) {
    this.place = place;
    this.models = models;
    this.content = h("div", { class: "server-content" });
    place.append(this.content);
  }

  show(visible) {
    clearTimeout(this.timer);
    this.visible = visible;
    if (visible) this.poll();
  }

  async poll() {
    if (!document.hidden) {
      try {
        const parts = await Promise.all(this.shown().map((name) => this.modelView(name)));
        replace(this.content, this.overview(), parts.length ? parts : h("p", { class: "empty" }, "No model is loaded."));
      } catch (error) {
        replace(this.content, h("p", { class: "error", role: "alert" }, `The server does not answer: ${error.message}`));
      }
    }
    if (this.visible) this.timer = setTimeout(() => this.poll(), EVERY);
  }

  shown() {
    const { models } = this;
    if (!models.router) return [models.name];
    return models.list.filter((each) => each.status?.value === "loaded").map((each) => each.id);
  }

  overview() {
    const { models } = this;
    const { server } = models;
    const rows = models.list.map((each) => {
      const status = models.status(each.id);
      const progress = models.progress.get(each.id);
      return h("tr", {},
        h("th", { scope: "row", class: "name" }, each.id),
        h("td", {}, h("span", { class: `dot ${status}` }), ` ${status}`, progress === undefined ? "" : ` ${percent(progress)}`),
        h("td", { class: "number" }, number(each.meta?.n_params)),
        h("td", { class: "number" }, isLoaded(each) ? number(each.meta?.n_ctx) : "–"));
    });
    return h("section", { class: "card" },
      h("h2", {}, "Models"),
      h("p", { class: "hint" }, [server.build_info, models.router ? "a router" : "one model"].filter(Boolean).join(" · ")),
      table("Models", ["Model", "Status", "Parameters", "Context"], rows));
  }

  async modelView(name) {
    const query = this.models.router ? `?model=${encodeURIComponent(name)}&autoload=false` : "";
    const [metrics, slots, queue] = await Promise.all([
      wanted(request(`metrics${query}`).then((response) => response.text())),
      wanted(json(`slots${query}`)),
      wanted(json(`queue${query}`)),
    ]);
    return h("section", { class: "model-section", "aria-label": name },
      this.models.router && h("h2", { class: "model-title" }, name),
      metrics.missing ? missing("The engine's metrics", metrics.missing, "--metrics") : this.figures(name, parse(metrics.found)),
      slots.missing ? missing("The slots", slots.missing, "--slots") : slotsView(slots.found),
      queue.missing ? null : queueView(queue.found),
      metrics.missing ? null : missesView(parse(metrics.found)),
      metrics.missing ? null : latencies(parse(metrics.found)));
  }

  figures(name, samples) {
    const now = performance.now();
    const read = (each) => value(samples, each);
    const counters = {
      at: now,
      predicted: read("llamacpp:tokens_predicted_total"),
      prompt: read("llamacpp:prompt_tokens_total"),
    };
    const before = this.last.get(name);
    this.last.set(name, counters);
    const seconds = before ? (now - before.at) / 1000 : NaN;
    const rate = (key) => (before && counters[key] >= before[key] ? (counters[key] - before[key]) / seconds : 0);
    const cached = read("llamacpp:prompt_tokens_cached_total");
    const shared = read("specllama_prompt_tokens_shared_total");
    const all = counters.prompt + cached;
    const tiles = [
      ["Tokens/s", rate("predicted"), number, "of the last second"],
      ["Prompt tokens/s", rate("prompt"), number, "of the last second"],
      ["Requests", read("llamacpp:requests_processing"), number, `${number(read("llamacpp:requests_deferred"))} in the queue`],
      ["KV cache", read("llamacpp:kv_cache_usage_ratio"), percent, `${number(read("llamacpp:kv_cache_tokens"))} tokens`],
      ["Cached prompts", all > 0 ? cached / all : NaN, percent, `${percent(all > 0 ? shared / all : NaN)} shared`],
      ["Engine memory", read("specllama_engine_resident_bytes") / 2 ** 20, number, "MiB"],
    ];
    return h("div", { class: "tiles" }, tiles.map(([label, now, format, note]) =>
      h("div", { class: "tile" }, h("div", { class: "tile-label" }, label),
        h("div", { class: "tile-value" }, format(now)), h("div", { class: "tile-note" }, note),
        this.curve(name, label, now))));
  }

  curve(name, label, now) {
    const key = `${name}\n${label}`;
    const values = [...(this.curves.get(key) ?? []), Number.isFinite(now) ? now : 0].slice(-KEPT);
    this.curves.set(key, values);
    const most = Math.max(...values, 1e-9);
    const points = values.map((each, at) => `${(100 * (KEPT - values.length + at)) / (KEPT - 1)},${27 - (25 * each) / most}`);
    return svg("svg", { viewBox: "0 0 100 28", preserveAspectRatio: "none", class: "curve", "aria-hidden": "true" },
      svg("polyline", { points: points.join(" ") }));
  }
}

// Returns the server's answer, or the reason for its refusal, usually that an option is off.
async function wanted(answer) {
  try {
    return { found: await answer };
  } catch (error) {
    if (error.status === undefined || error.status === 401) throw error;
    return { missing: error.message };
  }
}

function missing(what, why, option) {
  return h("section", { class: "card" }, h("p", { class: "hint" }, `${what} can't be shown: ${why}`),
    h("p", { class: "hint" }, "The option is ", h("code", {}, option), "."));
}

function table(label, heads, rows) {
  return h("div", { class: "table", tabindex: "0", role: "region", "aria-label": label },
    h("table", {}, h("thead", {}, h("tr", {}, heads.map((each, at) => h("th", { scope: "col", class: rows[0]?.children[at]?.className === "number" ? "number" : null }, each)))), h("tbody", {}, rows)));
}

function slotsView(slots) {
  const rows = slots.map((slot) => {
    const used = (slot.n_prompt_tokens ?? 0) / slot.n_ctx;
    const decoded = slot.next_token?.n_decoded ?? slot.next_token?.[0]?.n_decoded;
    return h("tr", {},
      h("th", { scope: "row" }, String(slot.id)),
      h("td", {}, h("span", { class: `dot ${slot.is_processing ? "busy" : "idle"}` }), slot.is_processing ? " busy" : " idle",
        slot.is_processing && slot.key_name ? ` (${slot.key_name})` : ""),
      h("td", {}, h("meter", { min: 0, max: 1, value: used, "aria-label": `Context of slot ${slot.id}` }), ` ${number(slot.n_prompt_tokens ?? 0)} of ${number(slot.n_ctx)}`),
      h("td", { class: "number" }, number(slot.n_prompt_tokens_processed ?? NaN)),
      h("td", { class: "number" }, number(slot.n_prompt_tokens_cache ?? NaN)),
      h("td", { class: "number" }, number(slot.n_prompt_tokens_shared ?? NaN)),
      h("td", { title: slot.cache_miss_reason ? `Not cached from token ${number(slot.cache_miss_at)} on: ${missed(slot.cache_miss_reason)}` : null },
        slot.cache_miss_reason ?? "–"),
      h("td", { class: "number" }, number(decoded ?? NaN)));
  });
  return h("section", { class: "card" }, h("h2", {}, "Slots"),
    table("Slots", ["Slot", "State", "Context", "Read", "Cached", "Shared", "Missed", "Generated"], rows));
}

// Shows how many prompt tokens were read for each reason; nothing for a server without reasons.
function missesView(samples) {
  const found = (samples.get("specllama_prompt_tokens_computed_total") ?? []).filter(({ value }) => value > 0);
  if (!found.length) return null;
  const rows = found.sort((a, b) => b.value - a.value).map(({ labels, value }) => h("tr", {},
    h("th", { scope: "row" }, missed(labels.reason)), h("td", { class: "number" }, number(value))));
  return h("section", { class: "card" }, h("h2", {}, "Prompt tokens that were not cached"),
    table("Prompt tokens that were not cached", ["Reason", "Tokens"], rows));
}

// The requests that wait. The server lists the first of them, and counts all.
function queueView(queue) {
  const { waiting, n_waiting: count } = queue;
  if (!count) return h("section", { class: "card" }, h("h2", {}, "Queue"), h("p", { class: "hint" }, "No request waits."));
  const rows = waiting.map((each) => h("tr", {},
    h("th", { scope: "row" }, String(each.place)),
    h("td", {}, each.key_name || "–"),
    h("td", { class: "number" }, String(each.priority)),
    h("td", { class: "number" }, number(each.n_tokens)),
    h("td", { class: "number" }, number(each.n_uncached_tokens)),
    h("td", { class: "number" }, duration(each.age_ms / 1000)),
    h("td", { class: "number" }, duration(each.wait_ms / 1000))));
  return h("section", { class: "card" }, h("h2", {}, "Queue"),
    h("p", { class: "hint" }, count === 1 ? "1 request waits." : `${number(count)} requests wait.`),
    rows.length ? table("Queue", ["Place", "Key", "Priority", "Tokens", "Not cached", "Age", "Estimated wait"], rows) : null);
}

function latencies(samples) {
  return h("section", { class: "card" }, h("h2", {}, "Latencies"),
    h("div", { class: "histograms" }, HISTOGRAMS.map(([name, label]) => histogramView(label, histogram(samples, name)))));
}

const duration = (seconds) =>
  !Number.isFinite(seconds) ? "–" : seconds < 1 ? `${number(1000 * seconds)} ms` : `${number(seconds)} s`;

function histogramView(label, data) {
  const { buckets, count } = data;
  const most = Math.max(1, ...buckets.map((each) => each.count));
  const width = 100 / Math.max(1, buckets.length);
  const bars = buckets.map(({ count: n, bound }, at) => {
    const height = n ? Math.max(1, (40 * n) / most) : 0;
    const title = document.createElementNS("http://www.w3.org/2000/svg", "title");
    title.textContent = `${bound === Infinity ? "more" : `up to ${duration(bound)}`}: ${n}`;
    return svg("rect", { x: at * width + 0.3, y: 42 - height, width: width - 0.6, height }, title);
  });
  const halves = `median ${duration(quantile(data, 0.5))}, 95 % below ${duration(quantile(data, 0.95))}`;
  return h("figure", { class: "histogram" },
    h("figcaption", {}, h("strong", {}, label), h("span", { class: "hint" }, `${number(count)} · ${count ? halves : "none yet"}`)),
    svg("svg", { viewBox: "0 0 100 42", preserveAspectRatio: "none", role: "img", "aria-label": `${label}: ${halves}` }, ...bars),
    h("div", { class: "axis", "aria-hidden": "true" }, h("span", {}, `≤ ${duration(buckets[0]?.bound)}`),
      h("span", {}, `> ${duration(buckets.at(-2)?.bound)}`)));
}
