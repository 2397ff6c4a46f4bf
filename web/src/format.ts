// Numbers as people read them: three digits, and the unit that fits.

function digits(value: number): string {
  const text = value.toPrecision(3);
  return text.includes("e") ? String(Math.round(value)) : text.includes(".") ? text.replace(/\.?0+$/, "") : text;
}

const TIMES: [number, string][] = [
  [1, "s"],
  [1e-3, "ms"],
  [1e-6, "µs"],
  [1e-9, "ns"],
];

export function seconds(value: number): string {
  if (value === 0) return "0 s";
  const [factor, unit] = TIMES.find(([least]) => value >= least * 0.9995) ?? TIMES[3]!;
  return `${digits(value / factor)} ${unit}`;
}

const SIZES = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];

export function bytes(value: number): string {
  const power = value < 1 ? 0 : Math.min(SIZES.length - 1, Math.floor(Math.log2(value) / 10));
  return `${digits(value / 1024 ** power)} ${SIZES[power]}`;
}

export function times(value: number): string {
  return `${value >= 100 ? Math.round(value) : value.toFixed(2)}×`;
}

export function percent(share: number): string {
  return share > 0 && share < 0.01 ? "<1%" : `${Math.round(share * 100)}%`;
}

/** "1.62× faster than …", or that there is no difference. */
export function faster(other: number, mine: number, than: string): string {
  const gain = mine ? other / mine : 1;
  if (Math.abs(gain - 1) < 0.005) return `as fast as ${than}`;
  return gain > 1 ? `${times(gain)} faster than ${than}` : `${times(1 / gain)} slower than ${than}`;
}

export function plural(count: number, word: string): string {
  return `${count.toLocaleString("en")} ${word}${count === 1 ? "" : "s"}`;
}
