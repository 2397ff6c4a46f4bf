// What is asked on the page of `meshwright explore`: the fields, in the address of the page and as a question.

import type { Look } from "./Page";

const FIELDS = [
  "system",
  "axes",
  "reductions",
  "workload",
  "library",
  "constraints",
  "choose",
  "engine",
  "chunks",
  "max_steps",
  "no_rooted",
  "placement_only",
] as const;

/** The fields, as text; what is on or off is "yes", or empty. */
export type Asked = Record<(typeof FIELDS)[number], string>;

export interface Example {
  system: string;
  axes: string;
  reductions: string;
  workload: string;
}

export interface Choices {
  start: Example;
  presets: (Example & { name: string; about: string })[];
  workloads: (Example & { name: string; about: string })[];
  libraries: string[];
  engines: string[];
  most: { chunks: number; max_steps: number };
  default: { chunks: number; max_steps: number };
  system_example: string;
}

/** The address of a view: all fields that are not empty, and what is looked at. */
export function address(asked: Asked, look: Partial<Look>): string {
  const found = new URLSearchParams();
  for (const field of FIELDS) if (asked[field]) found.set(field, asked[field]);
  for (const key of ["plan", "beside", "axis", "communication", "step"] as const) {
    const value = look[key];
    if (value !== null && value !== undefined) found.set(`show-${key}`, String(value));
  }
  return `?${found}`;
}

/** The fields in an address; null where there are none. */
export function askedIn(address: string): Asked | null {
  const found = new URLSearchParams(address);
  return found.has("system") ? asking(Object.fromEntries(found)) : null;
}

/** All fields, of which some are given. */
export function asking(given: Partial<Record<string, string>>): Asked {
  return Object.fromEntries(FIELDS.map((field) => [field, given[field] ?? ""])) as Asked;
}

/** What is looked at, as an address says. */
export function lookIn(address: string): Partial<Look> {
  const found = new URLSearchParams(address);
  const number = (key: string) => {
    const text = found.get(`show-${key}`);
    return text !== null && /^\d{1,6}$/.test(text) ? Number(text) : undefined;
  };
  const look: Partial<Look> = {};
  const axis = found.get("show-axis");
  if (axis !== null) look.axis = axis;
  for (const key of ["plan", "beside", "communication", "step"] as const) {
    const value = number(key);
    if (value !== undefined) look[key] = value;
  }
  return look;
}
