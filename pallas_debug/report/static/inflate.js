// Raw deflate, for browsers without DecompressionStream (RFC 1951).

const CODE_ORDER = [16, 17, 18, 0, 8, 7, 9, 6, 10, 5, 11, 4, 12, 3, 13, 2, 14, 1, 15];

/** A canonical Huffman code from the lengths of its symbols' codes. */
function huffman(lengths) {
  const counts = new Uint16Array(16);
  for (const length of lengths) counts[length]++;
  counts[0] = 0;
  const offsets = new Uint16Array(16);
  for (let n = 1; n < 16; n++) offsets[n] = offsets[n - 1] + counts[n - 1];
  const symbols = new Uint16Array(lengths.length);
  lengths.forEach((length, symbol) => {
    if (length) symbols[offsets[length]++] = symbol;
  });
  return { counts, symbols };
}

function inflate(data) {
  let out = new Uint8Array(data.length * 6 + 1024);
  let size = 0;
  let at = 0;
  let held = 0;
  let heldBits = 0;

  const grow = (extra) => {
    if (size + extra <= out.length) return;
    const larger = new Uint8Array(Math.max(out.length * 2, size + extra));
    larger.set(out.subarray(0, size));
    out = larger;
  };
  const bits = (count) => {
    while (heldBits < count) {
      if (at >= data.length) throw new Error('the data end too early');
      held |= data[at++] << heldBits;
      heldBits += 8;
    }
    const value = held & ((1 << count) - 1);
    held >>>= count;
    heldBits -= count;
    return value;
  };
  const symbolOf = ({ counts, symbols }) => {
    let code = 0;
    let first = 0;
    let index = 0;
    for (let length = 1; length < 16; length++) {
      code |= bits(1);
      const count = counts[length];
      if (code - count < first) return symbols[index + (code - first)];
      index += count;
      first = (first + count) << 1;
      code <<= 1;
    }
    throw new Error('the data are damaged');
  };
  // Lengths and distances grow by one extra bit every four (two) codes; 285 is a code of its own.
  const lengthOf = (symbol) => {
    if (symbol < 265) return symbol - 254;
    if (symbol === 285) return 258;
    const extra = (symbol - 261) >> 2;
    return (((symbol - 261) & 3) + 4 << extra) + 3 + bits(extra);
  };
  const distanceOf = (symbol) => {
    if (symbol < 4) return symbol + 1;
    const extra = (symbol >> 1) - 1;
    return ((symbol & 1) + 2 << extra) + 1 + bits(extra);
  };
  const dynamic = () => {
    const literals = bits(5) + 257;
    const distances = bits(5) + 1;
    const given = bits(4) + 4;
    const ofLengths = new Uint8Array(19);
    for (let n = 0; n < given; n++) ofLengths[CODE_ORDER[n]] = bits(3);
    const code = huffman([...ofLengths]);
    const lengths = [];
    while (lengths.length < literals + distances) {
      const symbol = symbolOf(code);
      if (symbol < 16) lengths.push(symbol);
      else {
        const value = symbol === 16 ? lengths.at(-1) : 0;
        let repeat = symbol === 16 ? 3 + bits(2) : symbol === 17 ? 3 + bits(3) : 11 + bits(7);
        while (repeat--) lengths.push(value);
      }
    }
    return [huffman(lengths.slice(0, literals)), huffman(lengths.slice(literals))];
  };
  const fixed = () => [
    huffman(Array.from({ length: 288 }, (_, n) => (n < 144 ? 8 : n < 256 ? 9 : n < 280 ? 7 : 8))),
    huffman(Array(30).fill(5)),
  ];

  for (let last = false; !last; ) {
    last = bits(1) === 1;
    const kind = bits(2);
    if (kind === 0) {
      held = heldBits = 0;
      const length = data[at] | (data[at + 1] << 8);
      at += 4;
      grow(length);
      out.set(data.subarray(at, at + length), size);
      at += length;
      size += length;
      continue;
    }
    const [literals, distances] = kind === 1 ? fixed() : dynamic();
    for (;;) {
      const symbol = symbolOf(literals);
      if (symbol === 256) break;
      if (symbol < 256) {
        grow(1);
        out[size++] = symbol;
        continue;
      }
      const length = lengthOf(symbol);
      const distance = distanceOf(symbolOf(distances));
      grow(length);
      for (let n = 0; n < length; n++, size++) out[size] = out[size - distance];
    }
  }
  return out.subarray(0, size);
}
