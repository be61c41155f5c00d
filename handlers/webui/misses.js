// Why a prompt wasn't cached: the reasons of the server (`cache_miss_reason`), in words.

const REASONS = {
  new: "it is new",
  edited: "the text has changed there",
  media: "an image or sound has changed there",
  evicted: "it had to make room in the cache",
  adapter: "it is cached for other adapters",
  key: "it is cached for another key",
  window: "the model's memory can't be cut there",
  shift: "its cells were moved",
  running: "another request is reading it",
  cost: "reading it is faster than loading it",
  disabled: "the request doesn't use the cache",
  none: "the last token of a prompt, which is always read",
};

export const missed = (reason) => REASONS[reason] ?? reason;
