// Diff of two lists of lines: anchored on lines that occur once on each side, then the shortest
// edit in what lies between.

const MAX_EDITS = 600;

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
      for (const [i, j] of shortestEdit(x, y, a0, a1, b0, b1)) pairs.push([i, j]);
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

/** Myers' greedy search; beyond `MAX_EDITS` the rest counts as replaced. */
function shortestEdit(x, y, a0, a1, b0, b1) {
  const n = a1 - a0;
  const m = b1 - b0;
  const limit = Math.min(n + m, MAX_EDITS);
  const width = 2 * limit + 3;
  const reach = new Int32Array(width);
  const history = [];
  for (let edits = 0; edits <= limit; edits++) {
    history.push(reach.slice(limit - edits, limit + edits + 3));
    for (let k = -edits; k <= edits; k += 2) {
      const at = k + limit + 1;
      let i = k === -edits || (k !== edits && reach[at - 1] < reach[at + 1])
        ? reach[at + 1]
        : reach[at - 1] + 1;
      while (i < n && i - k < m && x[a0 + i] === y[b0 + i - k]) i++;
      reach[at] = i;
      if (i >= n && i - k >= m) return backtrack(history, x, y, a0, b0, n, m);
    }
  }
  return [];
}

function backtrack(history, x, y, a0, b0, n, m) {
  const pairs = [];
  let [i, j] = [n, m];
  for (let edits = history.length - 1; edits >= 0; edits--) {
    const reach = history[edits];
    const k = i - j;
    const at = (diagonal) => reach[diagonal + edits + 1];
    const down = k === -edits || (k !== edits && at(k - 1) < at(k + 1));
    const before = down ? k + 1 : k - 1;
    const iBefore = edits ? at(before) : 0;
    const jBefore = edits ? iBefore - before : 0;
    while (i > iBefore && j > jBefore && x[a0 + i - 1] === y[b0 + j - 1]) {
      pairs.push([a0 + --i, b0 + --j]);
    }
    [i, j] = [iBefore, jBefore];
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
