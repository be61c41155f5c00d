// Prometheus' text format, as far as this server writes it.

const SAMPLE = /^([a-zA-Z_:][\w:]*)(?:\{(.*)\})?\s+(\S+)/;
const LABEL = /(\w+)="((?:[^"\\]|\\.)*)"/g;

export function parse(text) {
  const samples = new Map();
  for (const line of text.split("\n")) {
    const found = line.startsWith("#") ? null : SAMPLE.exec(line);
    if (!found) continue;
    const labels = Object.fromEntries([...(found[2] ?? "").matchAll(LABEL)].map(([, name, value]) => [name, value]));
    const value = found[3] === "+Inf" ? Infinity : Number(found[3]);
    if (!samples.has(found[1])) samples.set(found[1], []);
    samples.get(found[1]).push({ labels, value });
  }
  return samples;
}

export const value = (samples, name) => samples.get(name)?.[0]?.value ?? NaN;

// The buckets of a histogram, each with how many fell into it alone.
export function histogram(samples, name) {
  let before = 0;
  const buckets = (samples.get(`${name}_bucket`) ?? []).map(({ labels, value: cumulative }) => {
    const bucket = { bound: labels.le === "+Inf" ? Infinity : Number(labels.le), count: cumulative - before };
    before = cumulative;
    return bucket;
  });
  return { buckets, count: value(samples, `${name}_count`), sum: value(samples, `${name}_sum`) };
}

// The value that a part of all stays below, between the bounds of its bucket.
export function quantile({ buckets, count }, part) {
  let seen = 0;
  let low = 0;
  for (const { bound, count: n } of buckets) {
    if (n > 0 && seen + n >= part * count) {
      return bound === Infinity ? low : low + (bound - low) * ((part * count - seen) / n);
    }
    seen += n;
    low = bound;
  }
  return NaN;
}
