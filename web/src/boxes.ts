// The drawing of a system: boxes in boxes, computed for the width that there is.

export interface Box {
  level: number;
  digits: number[];
  x: number;
  y: number;
  width: number;
  height: number;
}

export interface Drawing {
  width: number;
  height: number;
  cell: number;
  boxes: Box[];
  devices: Box[];
}

const CELLS = [40, 34, 28, 24, 20, 17, 14, 11, 9, 7, 5];
const TALLEST = 620;

/** Columns for `count` children in a block that is about as wide as `aspect` times its height. */
function columns(count: number, aspect: number): number {
  const ideal = Math.max(1, Math.round(Math.sqrt(count * aspect)));
  for (let near = 0; near < ideal; near++)
    for (const tried of [ideal + near, ideal - near]) if (tried > 0 && count % tried === 0) return tried;
  return ideal;
}

/** At most `most` columns; fewer, where rows are then of the same length. */
function even(count: number, most: number): number {
  for (let tried = Math.min(count, most); tried * 2 > most; tried--) if (count % tried === 0) return tried;
  return Math.min(count, most);
}

/** The space around the children of a box: more where it has a label. */
function spaces(cell: number): { pad: number; head: number; gap: number } {
  const small = cell < 14;
  return { pad: small ? 3 : 7, head: small ? 0 : 16, gap: cell < 20 ? 1.5 : 3 };
}

function attempt(counts: number[], width: number, cell: number): Drawing {
  const { pad, head, gap } = spaces(cell);
  const last = counts.length - 1;
  // From the inside: the size of one child of each level, and how many stand beside each other.
  const sizes: { width: number; height: number }[] = new Array(counts.length);
  const across: number[] = new Array(counts.length);
  const between = (level: number) => (level === last ? gap : pad + 1);
  sizes[last] = { width: cell, height: cell };
  for (let level = last; level >= 0; level--) {
    const size = sizes[level]!;
    const room = width - 2 * pad * level;
    const fitting = Math.max(1, Math.floor((room + between(level)) / (size.width + between(level))));
    const wanted = level === 0 ? counts[0]! : columns(counts[level]!, level === last ? 2 : 1.6);
    across[level] = even(counts[level]!, Math.min(fitting, wanted));
    if (level === 0) break;
    const rows = Math.ceil(counts[level]! / across[level]!);
    sizes[level - 1] = {
      width: across[level]! * (size.width + between(level)) - between(level) + 2 * pad,
      height: rows * (size.height + between(level)) - between(level) + 2 * pad + head,
    };
  }
  const drawing: Drawing = { width: 0, height: 0, cell, boxes: [], devices: [] };
  const place = (level: number, digits: number[], x: number, y: number) => {
    for (let k = 0; k < counts[level]!; k++) {
      const { width, height } = sizes[level]!;
      const left = x + (k % across[level]!) * (width + between(level));
      const top = y + Math.floor(k / across[level]!) * (height + between(level));
      const box = { level, digits: [...digits, k], x: left, y: top, width, height };
      drawing.width = Math.max(drawing.width, left + width);
      drawing.height = Math.max(drawing.height, top + height);
      if (level === last) drawing.devices.push(box);
      else {
        drawing.boxes.push(box);
        place(level + 1, box.digits, left + pad, top + pad + head);
      }
    }
  };
  place(0, [], 1, 1);
  drawing.width += 1;
  drawing.height += 1;
  return drawing;
}

/** The largest drawing of levels with these counts that is not wider than `width`, nor much taller than a screen. */
export function draw(counts: number[], width: number): Drawing {
  let found = attempt(counts, width, CELLS[0]!);
  for (const cell of CELLS.slice(1)) {
    if (found.width <= width && found.height <= TALLEST) break;
    found = attempt(counts, width, cell);
  }
  return found;
}
