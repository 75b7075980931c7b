// Diff of two lists of lines: anchored on lines that occur once on each side, then the most common
// lines in what lies between.

const MAX_CELLS = 4_000_000;

const noise = {
  mlir: (line) => line.replace(/%[\w$.-]+(?:#\d+)?/g, '%'),
  llo: (line) => line.replace(/[%$][\w$.-]+(?:#\d+)?/g, '%'),
};
noise.bundles = (line) => noise.llo(line.replace(/^\s*\w+\s*(?=[A-Z]* *:)/, '').replace(/\b\d+ =/g, '='));

/** Lines as they are compared: without value numbers, if these are to be ignored. */
function keysOf(text, ignoreValues) {
  const bare = ignoreValues ? noise[text.kind] : undefined;
  return bare ? text.lines.map(bare) : text.lines;
}

/** Blocks of equal lines, as [start in a, start in b, length], in order. */
function matchingBlocks(a, b) {
  const ids = new Map();
  const number = (line) => {
    if (!ids.has(line)) ids.set(line, ids.size);
    return ids.get(line);
  };
  const x = Int32Array.from(a, number);
  const y = Int32Array.from(b, number);
  const pairs = [];
  const todo = [[0, x.length, 0, y.length]];
  while (todo.length) {
    let [a0, a1, b0, b1] = todo.pop();
    while (a0 < a1 && b0 < b1 && x[a0] === y[b0]) pairs.push([a0++, b0++]);
    while (a0 < a1 && b0 < b1 && x[a1 - 1] === y[b1 - 1]) pairs.push([--a1, --b1]);
    if (a0 === a1 || b0 === b1) continue;
    const anchors = uniqueInBoth(x, y, a0, a1, b0, b1);
    if (!anchors.length) {
      pairs.push(...commonLines(x, y, a0, a1, b0, b1));
      continue;
    }
    let [i0, j0] = [a0, b0];
    for (const [i, j] of anchors) {
      pairs.push([i, j]);
      todo.push([i0, i, j0, j]);
      [i0, j0] = [i + 1, j + 1];
    }
    todo.push([i0, a1, j0, b1]);
  }
  pairs.sort((p, q) => p[0] - q[0]);
  const blocks = [];
  for (const [i, j] of pairs) {
    const last = blocks.at(-1);
    if (last && last[0] + last[2] === i && last[1] + last[2] === j) last[2]++;
    else blocks.push([i, j, 1]);
  }
  return blocks;
}

/** Pairs of lines that occur once on each side, in an order that both share. */
function uniqueInBoth(x, y, a0, a1, b0, b1) {
  const places = (list, from, to) => {
    const found = new Map();
    for (let n = from; n < to; n++) found.set(list[n], found.has(list[n]) ? -1 : n);
    return found;
  };
  const inB = places(y, b0, b1);
  const pairs = [];
  for (const [line, i] of places(x, a0, a1)) {
    const j = inB.get(line);
    if (i >= 0 && j !== undefined && j >= 0) pairs.push([i, j]);
  }
  pairs.sort((p, q) => p[0] - q[0]);
  // The longest increasing sequence, by patience sorting.
  const piles = [];
  const previous = new Array(pairs.length);
  pairs.forEach(([, j], n) => {
    let low = 0;
    let high = piles.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (pairs[piles[middle]][1] < j) low = middle + 1;
      else high = middle;
    }
    previous[n] = low ? piles[low - 1] : -1;
    piles[low] = n;
  });
  const chosen = [];
  for (let n = piles.length ? piles.at(-1) : -1; n >= 0; n = previous[n]) chosen.push(pairs[n]);
  return chosen.reverse();
}

/** Pairs of a longest common subsequence; beyond `MAX_CELLS` the lines count as replaced. */
function commonLines(x, y, a0, a1, b0, b1) {
  const width = b1 - b0 + 1;
  if ((a1 - a0 + 1) * width > MAX_CELLS) return [];
  const longest = new Uint16Array((a1 - a0 + 1) * width);
  for (let i = a1 - 1; i >= a0; i--) {
    for (let j = b1 - 1; j >= b0; j--) {
      const at = (i - a0) * width + j - b0;
      longest[at] = x[i] === y[j]
        ? longest[at + width + 1] + 1
        : Math.max(longest[at + width], longest[at + 1]);
    }
  }
  const pairs = [];
  for (let i = a0, j = b0; i < a1 && j < b1;) {
    const at = (i - a0) * width + j - b0;
    if (x[i] === y[j]) pairs.push([i++, j++]);
    else if (longest[at + width] >= longest[at + 1]) i++;
    else j++;
  }
  return pairs;
}

/** Rows of a unified diff, with long stretches of equal lines folded. */
function diffRows(old, text, ignoreValues, context = 3) {
  const blocks = matchingBlocks(keysOf(old, ignoreValues), keysOf(text, ignoreValues));
  const rows = [];
  let [i, j, removed, added] = [0, 0, 0, 0];
  for (const [a, b, size] of [...blocks, [old.lines.length, text.lines.length, 0]]) {
    for (; i < a; i++, removed++) rows.push({ sign: '−', text: old, line: i });
    for (; j < b; j++, added++) rows.push({ sign: '+', text, line: j });
    const first = rows.length ? context : 0;
    const last = a < old.lines.length - size || b < text.lines.length - size ? context : 0;
    for (let n = 0; n < size; n++, i++, j++) {
      if (size > first + last + 1 && n === first) {
        const hidden = [];
        for (; n < size - last; n++, i++, j++) hidden.push({ sign: ' ', text, line: j });
        rows.push({ hidden });
        if (n >= size) break;
      }
      rows.push({ sign: ' ', text, line: j });
    }
  }
  return { rows, removed, added };
}
