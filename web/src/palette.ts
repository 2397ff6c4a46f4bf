// Colours that people with any kind of colour vision can tell apart: Okabe and Ito's for a few values, and for many a
// ramp whose lightness grows all the way. What they mean always stands there as a number too.

const FEW = ["#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442", "#8C8C8C"];

const RAMP = ["#440154", "#46327e", "#365c8d", "#277f8e", "#1fa187", "#4ac16d", "#a0da39", "#fde725"];

const HEAT = ["#a3a3a3", "#c9b27c", "#eeb03c", "#ec7a1c", "#cf2a1e"];

export interface Colour {
  fill: string;
  text: string;
}

function parts(hex: string): number[] {
  return [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16));
}

function between(ramp: string[], share: number): string {
  const at = Math.max(0, Math.min(1, share)) * (ramp.length - 1);
  const low = Math.min(Math.floor(at), ramp.length - 2);
  const [one, other] = [parts(ramp[low]!), parts(ramp[low + 1]!)];
  const mixed = one.map((value, k) => Math.round(value + (other[k]! - value) * (at - low)));
  return `#${mixed.map((value) => value.toString(16).padStart(2, "0")).join("")}`;
}

/** How light a colour is to the eye, from 0 to 1. */
export function luminance(hex: string): number {
  const [r, g, b] = parts(hex).map((value) => {
    const share = value / 255;
    return share <= 0.04045 ? share / 12.92 : ((share + 0.055) / 1.055) ** 2.4;
  });
  return 0.2126 * r! + 0.7152 * g! + 0.0722 * b!;
}

function on(fill: string): Colour {
  // At 0.179, black and white can be read equally well: the contrast is 4.6 with both.
  return { fill, text: luminance(fill) > 0.179 ? "#000" : "#fff" };
}

/** The colour of the value `number` of `count`. */
export function colour(number: number, count: number): Colour {
  return on(count <= FEW.length ? FEW[number]! : between(RAMP, number / (count - 1)));
}

export function heatColour(share: number): Colour {
  return on(between(HEAT, share));
}

/** The colour of the step with a number. */
export function stepColour(number: number): Colour {
  return on(FEW[number % FEW.length]!);
}
