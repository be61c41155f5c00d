// The form for a message: its text, and files by picker, drop or paste.

import { button, h, replace } from "./dom.js";
import { accepted, fileView, readFiles } from "./files.js";
import { THINKING } from "./settings.js";

export class Composer {
  files = [];
  running = false;

  constructor(models, tools, actions) {
    this.models = models;
    this.tools = tools;
    this.actions = actions;
    this.attached = h("div", { class: "files", hidden: true });
    this.area = h("textarea", {
      id: "prompt", rows: 1, placeholder: "Write a message", "aria-label": "Message",
      oninput: () => this.changed(),
      onkeydown: (event) => {
        if (event.key === "Enter" && !event.shiftKey && !event.isComposing && !matchMedia("(pointer: coarse)").matches) {
          event.preventDefault();
          if (!this.running) this.send();
        }
      },
      onpaste: (event) => {
        const files = [...(event.clipboardData?.files ?? [])];
        if (!files.length) return;
        event.preventDefault();
        this.add(files);
      },
    });
    this.picker = h("input", { type: "file", multiple: true, hidden: true, "aria-label": "Files",
      onchange: () => { this.add([...this.picker.files]); this.picker.value = ""; } });
    this.attach = button("attach", "Add files", () => this.picker.click());
    this.thinking = h("select", { class: "thinking", "aria-label": "Thinking", hidden: true,
      onchange: () => this.actions.setThinking(this.thinking.value) },
      THINKING.map(([value, label]) => h("option", { value }, label)));
    this.count = h("span", {});
    this.choose = button("tools", "Tools", () => this.actions.chooseTools(), { class: "icon-button choose-tools", hidden: true });
    this.choose.append(this.count);
    this.main = button("send", "Send", () => (this.running ? this.actions.stop() : this.send()), { class: "icon-button send" });
    this.element = h("form", { class: "composer", onsubmit: (event) => { event.preventDefault(); this.send(); } },
      this.attached, this.area, h("div", { class: "composer-foot" }, this.attach, this.picker, this.thinking, this.choose, h("span", { class: "spacer" }), this.main));
    models.addEventListener("change", () => { this.drawPicker(); this.drawThinking(); });
    this.drawPicker();
    this.listenForDrops();
    this.changed();
  }

  listenForDrops() {
    const target = document.body;
    const hasFiles = (event) => [...(event.dataTransfer?.types ?? [])].includes("Files");
    target.addEventListener("dragover", (event) => {
      if (!hasFiles(event)) return;
      event.preventDefault();
      this.element.classList.add("dropping");
    });
    target.addEventListener("dragleave", (event) => {
      if (!event.relatedTarget) this.element.classList.remove("dropping");
    });
    target.addEventListener("drop", (event) => {
      this.element.classList.remove("dropping");
      if (!hasFiles(event)) return;
      event.preventDefault();
      this.add([...event.dataTransfer.files]);
    });
  }

  drawPicker() {
    const { vision, audio, video } = this.models.modalities;
    this.picker.accept = accepted(this.models.modalities);
    const kinds = ["texts", "PDFs", vision && "images", audio && "sounds", video && "videos"].filter(Boolean).join(", ");
    this.attach.setAttribute("aria-label", `Add files: ${kinds}`);
    this.attach.title = `Add files: ${kinds}`;
  }

  drawThinking() {
    this.thinking.hidden = !this.models.thinks;
    this.thinking.value = this.actions.thinking();
  }

  // Shows the number of the server's tools that the model may call.
  drawTools() {
    const all = this.tools.list.length;
    const offered = this.actions.offered();
    this.choose.hidden = !all;
    this.count.textContent = String(offered);
    this.choose.title = `Tools: ${offered} of ${all}`;
    this.choose.setAttribute("aria-label", this.choose.title);
  }

  async add(files) {
    this.files.push(...(await readFiles(files, this.models.modalities)));
    this.drawFiles();
    this.area.focus();
  }

  drawFiles() {
    this.attached.hidden = !this.files.length;
    replace(this.attached, this.files.map((each) => fileView(each, () => {
      this.files = this.files.filter((other) => other !== each);
      this.drawFiles();
    })));
    this.changed();
  }

  changed() {
    this.area.rows = Math.min(10, Math.max(1, this.area.value.split("\n").length));
    this.main.disabled = !this.running && !this.area.value.trim() && !this.files.length;
  }

  setRunning(running) {
    this.running = running;
    const [name, label] = running ? ["stop", "Stop"] : ["send", "Send"];
    const made = button(name, label, () => {});
    replace(this.main, made.firstChild);
    this.main.title = label;
    this.main.setAttribute("aria-label", label);
    this.changed();
  }

  send() {
    const text = this.area.value.trim();
    if (this.running || (!text && !this.files.length)) return;
    const { files } = this;
    this.files = [];
    this.area.value = "";
    this.drawFiles();
    this.actions.send(text, files);
  }
}
