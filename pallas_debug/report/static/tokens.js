// Words of a line, coloured by what they are. Only lines that are on the screen are read.

const PYTHON = new Set(
  ('and as assert async await break class continue def del elif else except finally for from ' +
    'global if import in is lambda nonlocal not or pass raise return try while with yield ' +
    'None True False').split(' '),
);
const WORDS = {
  python:
    /(?<comment>#.*$)|(?<string>[rbfRBF]{0,2}(?:"(?:[^"\\]|\\.)*"?|'(?:[^'\\]|\\.)*'?))|(?<number>\b\d[\w.]*)|(?<word>[A-Za-z_]\w*)/g,
  jaxpr:
    /(?<comment># .*$)|(?<type>\b(?:Ref|[a-z]+\d+|bool|key)(?:<[^>]*>)?[[{][^\]}]*[\]}]+)|(?<op>(?<== )[a-z_]\w*)|(?<number>\b-?\d[\w.+-]*)|(?<word>[A-Za-z_]\w*)/g,
  other:
    /(?<comment>\/\*.*?\*\/|\/\/.*$)|(?<string>"(?:[^"\\]|\\.)*")|(?<value>[%$][\w.$-]+(?:#\d+)?)|(?<type>\b(?:vector|memref|tensor)<[^>]*(?:>>?)?|\b(?:[fiu]\d+|bf16|index)\b)|(?<op>(?<=(?:^|= |\} ?|;;  )\s*"?)[a-z_]\w*(?:\.[\w.]+)?)|(?<number>\b(?:0x)?\d[\w.+-]*)/g,
};

/** Adds the words of a line to a node; a very long line stays plain. */
function paint(node, text, kind) {
  const pattern = WORDS[kind === 'python' || kind === 'jaxpr' ? kind : 'other'];
  if (text.length > 1500) {
    node.append(text);
    return;
  }
  let at = 0;
  for (const match of text.matchAll(pattern)) {
    let name = Object.keys(match.groups).find((key) => match.groups[key] !== undefined);
    if (name === 'word') name = kind === 'python' && PYTHON.has(match[0]) ? 'op' : null;
    if (!name) continue;
    if (match.index > at) node.append(text.slice(at, match.index));
    node.append(element('span', { class: `tk-${name}` }, match[0]));
    at = match.index + match[0].length;
  }
  node.append(text.slice(at));
}
