// The view of a plan, as `meshwright show --json` gives it: see src/meshwright/show/view.py.

export interface Level {
  name: string;
  count: number;
  drawn: number;
  link: string;
}

/** What a phase puts on the links of a level: the level's number, the seconds and the bytes of its busiest link. */
export type Load = [level: number, seconds: number, bytes: number];

export interface Phase {
  seconds: number;
  loads: Load[];
}

export interface Step {
  text: string;
  algorithm: string;
  seconds: number;
  call: number;
  phases: Phase[];
}

/** What a device holds: the levels along which it has only its own part, and over which all have contributed, as bits. */
export type Held = [scattered: number, reduced: number] | null;

export interface Flow {
  steps: Step[];
  /** At the start and after each step: what devices hold, by the set of their digits that are zero, as bits. */
  states: Held[][];
}

export interface Measured {
  engine: string;
  seconds: number;
  default_seconds: number | null;
}

export interface Times {
  seconds: number;
  default_seconds: number;
  bound_seconds: number;
}

export interface Communication extends Times {
  name: string;
  goal: string;
  axes: string[];
  size: string;
  count: number;
  hidden: number;
  program: string;
  why: string;
  levels: number[];
  radices: number[];
  flows: Flow[];
  order: number[];
  period: number;
  measured: Measured | null;
}

export interface Plan extends Times {
  axes: string[];
  matrix: number[][];
  communications: Communication[];
}

/** The sizes of the axes that were tried, the fastest first. */
export interface Sizes {
  best: { axes: string; seconds: number; communication: number; computing: number | null; memory: string }[];
  tried: number;
  ways: number;
  refused: string[];
}

export interface View {
  format: "meshwright-view";
  version: number;
  title: string;
  system: { name: string; devices: number; levels: Level[] };
  library: string;
  axes: { name: string; size: number }[];
  sizes: Sizes | null;
  chosen: number;
  plans: Plan[];
  as_given_seconds: number | null;
  why: string[];
  certificate: string;
  advice: { change: string; seconds: number; kind: string }[];
  snippets: { name: string; text: string; note: string }[];
  notes: string[];
}

/** Measurements beside predictions: see src/meshwright/show/accuracy.py. */
export interface Accuracy {
  format: "meshwright-accuracy";
  version: number;
  title: string;
  library: string;
  systems: string[];
  figures: [name: string, value: string][];
  /** For each program: the number of its system, its measured and predicted seconds, and what it is. */
  points: [system: number, measured: number, predicted: number, what: string][];
  misses: string[];
  notes: string[];
}
