// A conversation is a tree: editing a message or generating it again adds a branch to its parent.
// The path from the root to the current leaf is shown and sent.

import { newId } from "./dom.js";
import { settingsOf } from "./settings.js";

const TITLE = 60;
const IMAGE = /^data:image\/(png|jpeg|gif|webp|bmp);base64,[A-Za-z0-9+/=]+$/;
const AUDIO = /^data:audio\/(wav|mpeg);base64,[A-Za-z0-9+/=]+$/;
const VIDEO = /^data:video\/[a-z0-9-]+;base64,[A-Za-z0-9+/=]+$/;
const PDF = /^data:application\/pdf;base64,[A-Za-z0-9+/]*={0,2}$/;
const KIND = "specllama-conversations";

export function newConversation() {
  const now = Date.now();
  return { id: newId(), title: "", created: now, updated: now, messages: [], leaf: null };
}

export function message(conversation, id) {
  return conversation.messages.find((each) => each.id === id) ?? null;
}

export function path(conversation, leaf = conversation.leaf) {
  const found = [];
  for (let at = message(conversation, leaf); at; at = message(conversation, at.parent)) {
    found.unshift(at);
  }
  return found;
}

// Returns the calls at the end of a path that have no result yet.
export function waiting(messages) {
  const at = messages.findLastIndex((each) => each.role !== "tool");
  const done = new Set(messages.slice(at + 1).map((each) => each.callId));
  return (messages[at]?.calls ?? []).filter((call) => call && !done.has(call.id));
}

export function siblings(conversation, of) {
  return conversation.messages.filter((each) => each.parent === of.parent);
}

export function append(conversation, parent, fields) {
  const added = { id: newId(), parent, content: "", created: Date.now(), ...fields };
  conversation.messages.push(added);
  conversation.leaf = added.id;
  choose(conversation, added);
  conversation.updated = added.created;
  if (!conversation.title && added.role === "user") conversation.title = titled(added.content);
  return added;
}

// Marks a message's branch as the chosen one of its parent, to return to it later.
function choose(conversation, { id, parent }) {
  const before = message(conversation, parent);
  if (before) before.chosen = id;
}

// Shows the branch that begins with a message, down to the leaf that was shown last.
export function follow(conversation, id) {
  let at = message(conversation, id);
  choose(conversation, at);
  for (;;) {
    const next =
      conversation.messages.find((each) => each.id === at.chosen && each.parent === at.id) ??
      conversation.messages.findLast((each) => each.parent === at.id);
    if (!next) break;
    at = next;
  }
  conversation.leaf = at.id;
}

// Removes a message and all messages after it. Returns a function that restores them in the given
// conversation, which may have changed meanwhile.
export function prune(conversation, id) {
  const before = conversation.messages;
  const parent = message(conversation, id).parent;
  const gone = new Set([id]);
  for (const each of conversation.messages) if (gone.has(each.parent)) gone.add(each.id);
  conversation.messages = conversation.messages.filter((each) => !gone.has(each.id));
  if (gone.has(conversation.leaf)) {
    const other = conversation.messages.findLast((each) => each.parent === parent);
    if (other) follow(conversation, other.id);
    else conversation.leaf = parent;
  }
  return (conversation) => {
    const now = new Map(conversation.messages.map((each) => [each.id, each]));
    const restored = before.map((each) => now.get(each.id) ?? each);
    conversation.messages = [...new Set([...restored, ...now.values()])];
    follow(conversation, id);
  };
}

function titled(text) {
  const line = text.trim().split("\n", 1)[0];
  return line.length > TITLE ? `${line.slice(0, TITLE).trimEnd()}…` : line || "Attachment";
}

export function matches(conversation, words) {
  const text = [conversation.title, ...conversation.messages.map((each) => each.content)]
    .join("\n")
    .toLowerCase();
  return words.every((word) => text.includes(word));
}

export function exported(conversations) {
  return JSON.stringify({ kind: KIND, version: 1, conversations }, null, 1);
}

// Returns the conversations in an untrusted file: only fields of the right form, with new ids. Throws
// Error for any other file.
export function imported(text) {
  let document;
  try {
    document = JSON.parse(text);
  } catch {
    throw new Error("the file is not JSON");
  }
  if (document?.kind !== KIND || !Array.isArray(document.conversations)) {
    throw new Error("the file has no conversations from this page");
  }
  return document.conversations.filter(isObject).map(adopted);
}

const isObject = (value) => typeof value === "object" && value !== null && !Array.isArray(value);
const text = (value) => (typeof value === "string" ? value : "");
const time = (value) => (Number.isFinite(value) && Math.abs(value) < 8e15 ? value : Date.now());
const list = (value) => (Array.isArray(value) ? value.filter(isObject) : []);

function adopted(given) {
  const made = newConversation();
  made.title = text(given.title).slice(0, 200);
  made.created = time(given.created);
  made.updated = time(given.updated);
  if (isObject(given.settings)) made.settings = settingsOf(given.settings);
  const ids = new Map();
  for (const each of list(given.messages)) {
    // A parent must come before its children, so that there can be no cycle.
    if (!["user", "assistant", "tool"].includes(each.role) || ids.has(each.id)) continue;
    if (each.parent != null && !ids.has(each.parent)) continue;
    const added = append(made, each.parent == null ? null : ids.get(each.parent), {
      role: each.role,
      content: text(each.content),
      created: time(each.created),
    });
    ids.set(each.id, added.id);
    for (const name of ["reasoning", "model", "error", "finish", "callId", "name"]) {
      if (typeof each[name] === "string") added[name] = each[name];
    }
    if (isObject(each.timings)) {
      added.timings = Object.fromEntries(
        Object.entries(each.timings).filter(([, value]) => Number.isFinite(value)),
      );
    }
    const calls = list(each.calls).map(({ id, name, arguments: value }) => ({
      id: text(id), name: text(name), arguments: text(value),
    }));
    if (calls.length) added.calls = calls;
    const files = list(each.files).map(adoptedFile).filter(Boolean);
    if (files.length) added.files = files;
  }
  made.updated = time(given.updated);
  if (ids.has(given.leaf)) made.leaf = ids.get(given.leaf);
  return made;
}

function adoptedFile({ kind, name, data }) {
  const right =
    (kind === "text" && typeof data === "string") ||
    (kind === "image" && IMAGE.test(data)) ||
    (kind === "audio" && AUDIO.test(data)) ||
    (kind === "video" && VIDEO.test(data)) ||
    (kind === "pdf" && PDF.test(data));
  return right ? { kind, name: text(name).slice(0, 200), data } : null;
}
