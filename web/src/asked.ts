// What is asked on the page of `meshwright explore`: the fields, in the address of the page and as a question.

import type { Look } from "./Page";

export interface Asked {
  system: string;
  axes: string;
  reductions: string;
  workload: string;
  library: string;
  constraints: string;
}

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
  system_example: string;
}

const FIELDS = ["system", "axes", "reductions", "workload", "library", "constraints"] as const;

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
  if (!found.has("system")) return null;
  const of = (field: string) => found.get(field) ?? "";
  return {
    system: of("system"),
    axes: of("axes"),
    reductions: of("reductions"),
    workload: of("workload"),
    library: of("library"),
    constraints: of("constraints"),
  };
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
