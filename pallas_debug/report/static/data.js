// The data of the page: chunks of compressed JSON in elements that the browser does not run.

const chunks = new Map();

async function unpacked(id) {
  const holder = document.getElementById(id);
  if (!holder) throw new Error(`the page does not hold ${id}`);
  const packed = Uint8Array.from(atob(holder.textContent), (c) => c.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream('deflate-raw'));
  return JSON.parse(await new Response(stream).text());
}

/** The chunk of an id, with each text's lines and their chains; inflated once. */
function chunkOf(id) {
  if (!chunks.has(id)) {
    chunks.set(id, unpacked(id).then((chunk) => {
      chunk.texts.forEach((text) => prepare(text, chunk));
      return chunk;
    }));
  }
  return chunks.get(id);
}

function prepare(text, chunk) {
  text.chunk = chunk;
  if (text.name === 'source') text.kind = 'python'; // that of an old dump
  if (text.text === undefined) return;
  text.lines = text.text ? text.text.split('\n') : [];
  const chains = new Int32Array(text.lines.length).fill(-1);
  let at = 0;
  for (let n = 0; n < text.chains.length; n += 2) {
    chains.fill(text.chains[n], at, (at += text.chains[n + 1]));
  }
  text.chainOf = chains;
  delete text.text;
}

/** Numbers from their run lengths. */
function expanded(runs) {
  const found = [];
  for (let n = 0; n < runs.length; n += 2) {
    for (let left = runs[n + 1]; left > 0; left--) found.push(runs[n]);
  }
  return found;
}

/** Chains of a chunk that a place is in: 2 if it is an innermost line, else 1. */
function chainsWith(chunk, file, line) {
  const found = new Map();
  const number = chunk.files.indexOf(file);
  if (number < 0) return found;
  chunk.chains.forEach((chain, id) => {
    for (let n = 0; n < chain.length; n += 2) {
      if (chain[n] === number && chain[n + 1] === line) {
        found.set(id, Math.max(found.get(id) ?? 0, n ? 1 : 2));
      }
    }
  });
  return found;
}

/** Places of a chain, innermost first. */
function placesOf(chunk, id) {
  const chain = chunk.chains[id] ?? [];
  const places = [];
  for (let n = 0; n < chain.length; n += 2) {
    places.push({ file: chunk.files[chain[n]], line: chain[n + 1] });
  }
  return places;
}

const baseName = (file) => (file ?? '').split(/[\\/]/).pop();
