// A parser of Prometheus' text format, for the metrics of this server.

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

// Returns the buckets of a histogram, with counts that are not cumulative.
export function histogram(samples, name) {
  let before = 0;
  const buckets = (samples.get(`${name}_bucket`) ?? []).map(({ labels, value: cumulative }) => {
    const bucket = { bound: labels.le === "+Inf" ? Infinity : Number(labels.le), count: cumulative - before };
    before = cumulative;
    return bucket;
  });
  return { buckets, count: value(samples, `${name}_count`), sum: value(samples, `${name}_sum`) };
}

// Returns the quantile for a part between 0 and 1, interpolated within its bucket.
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
