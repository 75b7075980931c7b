// Source beside the compiler's texts. One place, a Python line, is selected in all of them.

const NARROWEST = 160;

/**
 * The edge between a pane and the one before it: dragged, or moved by the arrows. Widths are those of
 * all kernels, and are forgotten with the page.
 */
class Edge {
  constructor(panes, n) {
    this.panes = panes;
    this.n = n;
    this.node = element('div', {
      class: 'pd-edge',
      role: 'separator',
      tabindex: '0',
      'aria-orientation': 'vertical',
      'aria-label': 'Widths of the panes beside this edge',
      'aria-valuenow': '50',
      onpointerdown: (event) => this.node.setPointerCapture(event.pointerId),
      onpointermove: (event) => {
        if (!this.node.hasPointerCapture(event.pointerId)) return;
        const { left, width } = this.node.getBoundingClientRect();
        this.move(event.clientX - left - width / 2);
      },
      onkeydown: (event) => {
        const by = { ArrowLeft: -40, ArrowRight: 40 }[event.key];
        if (!by) return;
        this.move(by);
        event.preventDefault();
        event.stopPropagation();
      },
    });
    panes[n].append(this.node);
  }

  move(by) {
    const sizes = this.panes.map((pane) => pane.offsetWidth || this.panes[1].offsetWidth);
    const both = sizes[this.n - 1] + sizes[this.n];
    sizes[this.n - 1] = clamp(sizes[this.n - 1] + by, NARROWEST, both - NARROWEST);
    sizes[this.n] = both - sizes[this.n - 1];
    const { style } = document.documentElement;
    sizes.forEach((size, n) => style.setProperty(`--pane-${n}`, `${size}fr`));
    this.node.setAttribute('aria-valuenow', Math.round((sizes[this.n - 1] / both) * 100));
  }
}

class SourcePane {
  constructor(explorer) {
    this.explorer = explorer;
    this.lines = new Lines({
      label: 'Python source',
      draw: (row, node) => this.draw(row, node),
      onchoose: (row) => this.explorer.select({ file: explorer.kernel.file, line: row.line }, this),
    });
    this.title = element('span', { class: 'pd-pane-title' }, baseName(explorer.kernel.file) || 'source');
    this.note = element('span', { class: 'pd-dim pd-pane-note' });
    this.node = element(
      'section',
      { class: 'pd-pane pd-source', 'aria-label': 'Source' },
      element('header', { class: 'pd-pane-head' }, this.title, this.note),
      this.lines.root,
    );
    this.counts = new Map();
    this.costs = null;
    this.most = 1;
  }

  show(chunk) {
    this.chunk = chunk;
    this.arrange();
  }

  arrange() {
    const { chunk } = this;
    const notes = new Map();
    for (const [line, kind, text] of chunk.notes ?? []) {
      notes.set(line, [...(notes.get(line) ?? []), { line, kind, note: text }]);
    }
    const code = chunk.source === null || chunk.source === undefined ? [] : chunk.source.split('\n');
    this.rows = [];
    code.forEach((text, n) => {
      this.rows.push({ line: n + 1, text });
      this.rows.push(...(notes.get(n + 1) ?? []));
    });
    if (!code.length) this.rows = [...notes.values()].flat();
    this.problem = code.length ? null : chunk.problem ?? 'the dump contains no source';
    const longest = this.rows.reduce((most, row) => Math.max(most, (row.text ?? row.note).length), 0);
    this.lines.set(this.rows, longest);
    this.recount();
  }

  /** Takes the numbers of lines of a text, for each line of source. */
  count(counts, label) {
    this.ofText = counts;
    this.counted = label;
    this.recount();
  }

  /** Takes the costs of the shown target: line, share, bundles, spills. */
  setCosts(costs) {
    this.costs = costs?.length ? new Map(costs.map((row) => [row[0], row])) : null;
    this.spilled = costs?.some((row) => row[3]) ?? false;
    this.recount();
  }

  /** Shows shares of the cycles beside the source, or without a schedule, lines of a text. */
  recount() {
    this.shares = this.costs !== null;
    this.counts = this.ofText ?? new Map();
    if (this.shares) {
      this.counts = new Map([...this.costs].flatMap(([line, row]) => (row[1] ? [[line, row[1]]] : [])));
    }
    this.most = Math.max(1e-9, ...this.counts.values());
    this.note.textContent = this.problem ?? (this.shares ? 'share of the cycles' : this.counted ?? '');
    this.lines.redraw();
  }

  number(count) {
    if (!this.shares) return count.toLocaleString('en');
    return count < 0.0995 ? `${(count * 100).toFixed(1)}%` : `${Math.round(count * 100)}%`;
  }

  draw(row, node) {
    if (row.note !== undefined) {
      node.classList.add('pd-note-row', `pd-is-${row.kind}`);
      node.append(element('span', { class: 'pd-note' }, `▲ ${row.note}`));
      return;
    }
    const count = this.counts.get(row.line);
    const gauge = element('span', { class: 'pd-gauge', 'aria-hidden': 'true' });
    if (count) gauge.style.setProperty('--share', (count / this.most).toFixed(3));
    node.append(
      element('span', { class: 'pd-no' }, String(row.line)),
      element('span', { class: 'pd-count' }, gauge, count ? this.number(count) : ''),
    );
    const cost = this.costs?.get(row.line);
    if (cost) {
      const [, share, bundles, spills] = cost;
      node.title = `${counted(bundles, 'bundle')}; ${(share * 100).toFixed(1)} % of the cycles; ` +
        `${counted(spills, 'spill')}`;
      if (spills) node.append(element('span', { class: 'pd-spills', 'aria-label': counted(spills, 'spill') }, `${spills} sp`));
    }
    if (this.spilled && !cost?.[3]) node.append(element('span', { class: 'pd-spills' }));
    const code = element('span', { class: 'pd-code' });
    paint(code, row.text, 'python');
    node.append(code);
  }

  mark(place) {
    const marks = new Uint8Array(this.rows.length);
    if (place && place.file === this.explorer.kernel.file) {
      this.rows.forEach((row, n) => {
        if (row.line === place.line && row.note === undefined) marks[n] = 2;
      });
    }
    for (const caller of this.explorer.callers) {
      if (caller.file !== this.explorer.kernel.file) continue;
      this.rows.forEach((row, n) => {
        if (row.line === caller.line && row.note === undefined) marks[n] ||= 1;
      });
    }
    this.lines.mark(marks);
  }

  rowOf(line) {
    return this.rows.findIndex((row) => row.line === line && row.note === undefined);
  }

  revealMarked() {
    const first = this.lines.marks.indexOf(2);
    if (first >= 0) this.lines.activate(first);
  }
}

class TextPane {
  constructor(explorer, label) {
    this.explorer = explorer;
    this.choice = null;
    this.base = null;
    this.select = element('select', {
      'aria-label': `Text in ${label}`,
      onchange: () => this.show(this.select.value, this.baseSelect.value),
    });
    this.baseSelect = element('select', {
      'aria-label': `Compare ${label} with`,
      class: 'pd-base',
      onchange: () => this.show(this.select.value, this.baseSelect.value),
    });
    this.numbers = element('input', {
      type: 'checkbox',
      onchange: () => this.show(this.select.value, this.baseSelect.value, true),
    });
    this.numbersLabel = element('label', { class: 'pd-check', hidden: true }, this.numbers, ' value numbers');
    this.search = element('input', {
      type: 'search',
      class: 'pd-find',
      placeholder: 'find',
      'aria-label': `Find in ${label}`,
      oninput: () => this.find(0),
      onkeydown: (event) => this.searchKey(event),
    });
    this.found = element('span', { class: 'pd-dim pd-found', 'aria-live': 'polite' });
    this.note = element('p', { class: 'pd-pane-message', hidden: true });
    this.lines = new Lines({
      label: 'Compiler text',
      draw: (row, node) => this.draw(row, node),
      onchoose: (row, n) => this.choose(row, n),
    });
    const step = (sign, by, name) =>
      element('button', { type: 'button', class: 'pd-icon', 'aria-label': name, title: name, onclick: () => this.step(by) }, sign);
    this.node = element(
      'section',
      { class: 'pd-pane pd-text', 'aria-label': label },
      element(
        'header',
        { class: 'pd-pane-head' },
        step('‹', -1, 'Previous text ( [ )'),
        this.select,
        step('›', 1, 'Next text ( ] )'),
        element('span', { class: 'pd-versus', 'aria-hidden': 'true' }, '±'),
        this.baseSelect,
        this.numbersLabel,
        this.search,
        this.found,
      ),
      this.note,
      this.lines.root,
    );
    this.rows = [];
    this.marks = new Uint8Array(0);
    this.hits = [];
  }

  /** Fills the lists of texts; keys are `target/name`, with `-` for texts of the kernel itself. */
  offer() {
    const options = (list) => {
      const groups = this.explorer.groups().map(({ label, entries }) =>
        element('optgroup', { label }, entries.map(({ key, name }) => element('option', { value: key }, name))),
      );
      list.replaceChildren(...groups);
    };
    options(this.select);
    options(this.baseSelect);
    this.baseSelect.prepend(element('option', { value: '' }, 'no comparison'));
  }

  async show(key, base = '', keepScroll = false) {
    this.choice = key;
    this.base = base || null;
    this.select.value = key;
    this.baseSelect.value = base || '';
    const [text, old] = await Promise.all([
      this.explorer.text(key),
      base ? this.explorer.text(base) : null,
    ]);
    if (this.choice !== key || (this.base ?? '') !== (base || '')) return;
    this.text = text;
    this.numbersLabel.hidden = !old;
    const problem = text.problem ?? old?.problem;
    this.note.hidden = !problem;
    this.note.textContent = problem ?? '';
    if (problem) this.rows = [];
    else if (old) this.compare(old, text);
    else this.rows = Array.from(text.lines, (_, line) => ({ text, line }));
    const width = this.rows.reduce((most, row) => Math.max(most, row.text?.lines[row.line].length ?? 0), 0);
    this.lines.label = `${nameOf(key)}${old ? ` compared with ${nameOf(base)}` : ''}`;
    this.lines.set(this.rows, width, keepScroll);
    this.find(0, false);
    this.mark(this.explorer.place);
    this.explorer.shown(this);
  }

  compare(old, text) {
    const made = diffRows(old, text, !this.numbers.checked);
    this.rows = made.rows;
    const { added, removed } = made;
    this.note.hidden = false;
    this.note.textContent = added + removed
      ? `+${added.toLocaleString('en')} −${removed.toLocaleString('en')} lines against ${nameOf(this.base)}`
      : `no line differs from ${nameOf(this.base)}`;
  }

  draw(row, node) {
    if (row.hidden) {
      node.classList.add('pd-fold');
      node.append(`${row.hidden.length.toLocaleString('en')} equal lines; Enter shows them`);
      return;
    }
    if (row.sign && row.sign !== ' ') {
      node.classList.add(row.sign === '+' ? 'pd-added' : 'pd-removed');
    }
    if (row.sign) node.append(element('span', { class: 'pd-diff-sign' }, row.sign));
    node.append(element('span', { class: 'pd-no' }, String(row.line + 1)));
    const code = element('span', { class: 'pd-code' });
    paint(code, row.text.lines[row.line], row.text.kind);
    node.append(code);
  }

  choose(row, n) {
    if (row.hidden) {
      this.rows.splice(n, 1, ...row.hidden);
      this.lines.set(this.rows, 0, true);
      this.mark(this.explorer.place);
      return;
    }
    const chain = row.text.chainOf[row.line];
    const places = chain < 0 ? [] : placesOf(row.text.chunk, chain);
    this.explorer.selectChain(places, this);
  }

  mark(place) {
    const marks = new Uint8Array(this.rows.length);
    if (place) {
      const ofChunk = new Map();
      this.rows.forEach((row, n) => {
        if (row.hidden) return;
        const { chunk } = row.text;
        if (!ofChunk.has(chunk)) ofChunk.set(chunk, chainsWith(chunk, place.file, place.line));
        marks[n] = ofChunk.get(chunk).get(row.text.chainOf[row.line]) ?? 0;
      });
    }
    this.marks = marks;
    this.linked = marks.reduce((sum, mark) => sum + (mark > 0), 0);
    for (const n of this.hits) marks[n] ||= 3;
    this.lines.mark(marks);
  }

  revealMarked() {
    const first = this.marks.indexOf(2);
    const n = first >= 0 ? first : this.marks.indexOf(1);
    if (n < 0) return;
    this.lines.activate(n, false);
    this.lines.center(n);
  }

  /** Lines of the shown text that come from each line of the kernel's own file. */
  counts() {
    const counts = new Map();
    if (!this.text?.lines) return counts;
    const { chunk } = this.text;
    const own = chunk.files.indexOf(this.explorer.kernel.file);
    const lineOf = chunk.chains.map((chain) => {
      const at = chain.findIndex((file, n) => n % 2 === 0 && file === own);
      return at < 0 ? undefined : chain[at + 1];
    });
    for (const chain of this.text.chainOf) {
      const line = lineOf[chain];
      if (line !== undefined) counts.set(line, (counts.get(line) ?? 0) + 1);
    }
    return counts;
  }

  step(by) {
    const keys = [...this.select.options].map((option) => option.value);
    const next = clamp(keys.indexOf(this.choice) + by, 0, keys.length - 1);
    this.explorer.go(keys[next], this.base ? this.choice : '', this);
  }

  find(step, move = true) {
    const wanted = this.search.value.toLowerCase();
    const before = this.hits;
    this.hits = [];
    if (wanted) {
      this.rows.forEach((row, n) => {
        if (!row.hidden && row.text.lines[row.line].toLowerCase().includes(wanted)) this.hits.push(n);
      });
    }
    if (!wanted) {
      this.found.textContent = '';
      if (before.length) this.mark(this.explorer.place);
      return;
    }
    this.mark(this.explorer.place);
    if (!move || !this.hits.length) {
      this.found.textContent = `${this.hits.length ? 1 : 0}/${this.hits.length}`;
      return;
    }
    const from = step ? this.lines.active : Math.max(0, this.lines.active - 1);
    let at = step < 0
      ? this.hits.findLastIndex((n) => n < from)
      : this.hits.findIndex((n) => n > from);
    if (at < 0) at = step < 0 ? this.hits.length - 1 : 0;
    this.lines.activate(this.hits[at], false);
    this.lines.center(this.hits[at]);
    this.found.textContent = `${at + 1}/${this.hits.length}`;
  }

  searchKey(event) {
    if (event.key === 'Enter') {
      event.preventDefault();
      this.find(event.shiftKey ? -1 : 1);
    } else if (event.key === 'Escape') {
      event.stopPropagation();
      this.search.value = '';
      this.find(0);
      this.lines.node.focus();
    }
  }
}

const nameOf = (key) => {
  const at = key.indexOf('/');
  return at < 0 ? key : key.slice(at + 1);
};

/** The name of a text without the number of a pass, which differs between targets. */
const titleOf = (name) => name.replace(/^\d+-/, '');

class Explorer {
  constructor(kernel, root) {
    this.kernel = kernel;
    this.target = 0;
    this.place = null;
    this.callers = [];
    this.source = new SourcePane(this);
    this.texts = [new TextPane(this, 'the first text'), new TextPane(this, 'the second text')];
    this.status = element('p', { class: 'pd-status', role: 'status', 'aria-live': 'polite' },
      'Choose a line to see what it became.');
    this.split = element('button', {
      type: 'button',
      class: 'pd-button',
      'aria-pressed': 'false',
      onclick: () => this.setSplit(this.texts[1].node.hidden),
    }, 'Second text');
    this.panes = element('div', { class: 'pd-panes' },
      this.source.node, ...this.texts.map((pane) => pane.node));
    this.edges = [1, 2].map((n) => new Edge([...this.panes.children], n));
    root.append(element('div', { class: 'pd-ex-bar' }, this.status, this.split), this.panes);
    this.texts[1].node.hidden = true;
    this.texts.forEach((pane) => pane.offer());
    this.ready = this.start();
  }

  async start() {
    const own = this.kernel.chunks.find((chunk) => chunk.target === null);
    try {
      this.source.show(await chunkOf(own.id));
    } catch (error) {
      this.source.show({ problem: `this part of the page is damaged: ${error.message}` });
    }
  }

  /** Texts of the kernel, of the chosen target, then of the others. */
  groups() {
    const { kernel } = this;
    const of = (chunk) => {
      const prefix = chunk.target === null ? '-' : chunk.target;
      return chunk.names.map((name) => ({ key: `${prefix}/${name}`, name }));
    };
    const own = kernel.chunks.filter((chunk) => chunk.target === null);
    const groups = [{ label: 'kernel', entries: own.flatMap(of) }];
    kernel.targets.forEach((label, target) => {
      const entries = kernel.chunks.filter((chunk) => chunk.target === target).flatMap(of);
      if (entries.length) groups.push({ label, entries });
    });
    return groups;
  }

  /** Keys of the chosen target's texts. */
  keys() {
    return this.groups().flatMap(({ entries }) => entries).map(({ key }) => key)
      .filter((key) => key.startsWith(`${this.target}/`));
  }

  async text(key) {
    const [prefix, name] = [key.slice(0, key.indexOf('/')), nameOf(key)];
    const target = prefix === '-' ? null : Number(prefix);
    const chunk = this.kernel.chunks.find((c) => c.target === target && c.names.includes(name));
    if (!chunk) return { problem: 'the dump does not contain this text' };
    try {
      const data = await chunkOf(chunk.id);
      return data.texts[chunk.names.indexOf(name)];
    } catch (error) {
      return { problem: `this part of the page is damaged: ${error.message}` };
    }
  }

  /** Shows a target, with a text of it if one is named. */
  async setTarget(target, name = null, line = null) {
    await this.ready;
    const before = this.target;
    this.target = target;
    const keys = this.keys();
    const current = this.texts[0].choice ? nameOf(this.texts[0].choice) : null;
    const wanted = name ?? current ?? this.usual(keys);
    const known = (text) => keys.find((key) => nameOf(key) === text);
    let key = known(wanted) ?? known(this.usual(keys)) ?? keys.at(-1) ?? '-/jaxpr';
    if (name === 'jaxpr' || (current === 'jaxpr' && !name)) key = '-/jaxpr';
    if (before !== target || this.texts[0].choice !== key) await this.texts[0].show(key);
    if (!this.texts[1].node.hidden) {
      const second = nameOf(this.texts[1].choice ?? '');
      const isSame = titleOf(second) === titleOf(nameOf(key));
      await this.texts[1].show((isSame ? null : known(second)) ?? this.secondKey());
    }
    const schedule = await this.schedule(target);
    this.source.setCosts(schedule?.costs);
    if (line !== null) this.select({ file: this.kernel.file, line }, null);
    else if (this.place === null && !this.source.scrolled) this.showDefinition();
  }

  /** The chunk of a target's schedule; null if the dump has none. */
  async schedule(target) {
    const found = this.kernel.chunks.find((c) => c.target === target && c.id.endsWith('-schedule'));
    if (!found) return null;
    try {
      return await chunkOf(found.id);
    } catch {
      return null; // the pane that shows its texts says why
    }
  }

  /** Shows a bundle in the text that has the bundles. */
  async showBundle(row) {
    const key = `${this.target}/bundles`;
    let pane = this.visible().find((one) => one.choice === key && !one.base);
    if (!pane) {
      pane = this.texts[1];
      pane.node.hidden = false;
      this.split.setAttribute('aria-pressed', 'true');
      this.fit();
      await pane.show(key);
    }
    pane.lines.activate(row, false);
    pane.lines.center(row);
    pane.choose(pane.rows[row], row);
  }

  /** Makes the panes as high as their content needs, within limits. */
  fit() {
    const most = Math.max(6, this.source.rows?.length ?? 0,
      ...this.visible().map((pane) => pane.rows.length));
    this.panes.style.setProperty('--content', `${most * 20 + 62}px`);
  }

  showDefinition() {
    this.source.scrolled = true;
    const n = this.source.rowOf(this.kernel.line);
    if (n > 0) this.source.lines.center(n);
  }

  /** The text to begin with: the last one of Mosaic's in terms of vectors, else the last. */
  usual(keys) {
    const names = keys.map(nameOf);
    return names.findLast((name) => name.includes('apply-vector-layout')) ?? names.at(-1) ?? 'jaxpr';
  }

  /** The same text for another target, or of the old dump; else the bundles, or the last pass. */
  secondKey() {
    const { choice } = this.texts[0];
    const all = this.groups().flatMap(({ entries }) => entries).map(({ key }) => key);
    const isOther = (key) => !/^-/.test(key) && !key.startsWith(`${this.target}/`);
    const keys = this.keys().filter((key) => key !== choice);
    return all.find((key) => isOther(key) && titleOf(nameOf(key)) === titleOf(nameOf(choice)))
      ?? keys.find((key) => nameOf(key) === 'bundles')
      ?? keys.findLast((key) => /^\d/.test(nameOf(key))) ?? keys.at(-1) ?? '-/jaxpr';
  }

  async setSplit(split) {
    this.texts[1].node.hidden = !split;
    this.fit();
    this.split.setAttribute('aria-pressed', String(split));
    if (split && this.texts[1].choice === null) {
      await this.texts[1].show(this.secondKey());
      this.texts[1].revealMarked();
    }
  }

  go(key, base, pane) {
    if (key === undefined) return;
    pane.show(key, base && base !== key ? base : '');
  }

  /** Called by a pane that shows another text. */
  shown(pane) {
    this.fit();
    if (pane === this.texts[0]) {
      this.source.count(pane.counts(), `lines of ${nameOf(pane.choice)}`);
    }
    if (this.place) this.tell();
  }

  select(place, from) {
    this.callers = [];
    this.mark(place, from);
  }

  /** Selects the innermost line of a chain in the kernel's own file, else the innermost of all. */
  selectChain(places, from) {
    if (!places.length) {
      this.status.textContent = 'This line does not come from a Python line.';
      return;
    }
    const own = places.find((place) => place.file === this.kernel.file) ?? places[0];
    this.callers = places.filter((place) => place !== own);
    this.mark(own, from);
  }

  mark(place, from) {
    this.place = place;
    this.strip?.mark(place);
    this.source.mark(place);
    if (from !== this.source) this.source.revealMarked();
    for (const pane of this.visible()) {
      pane.mark(place);
      if (from !== pane) pane.revealMarked();
    }
    this.tell();
  }

  visible() {
    return this.texts.filter((pane) => !pane.node.hidden && pane.choice !== null);
  }

  tell() {
    const { file, line } = this.place;
    const counts = this.visible().map((pane) =>
      `${pane.linked.toLocaleString('en')} ${pane.linked === 1 ? 'line' : 'lines'} of ${nameOf(pane.choice)}`);
    const from = this.callers.length
      ? `, through ${this.callers.map((c) => `${baseName(c.file)}:${c.line}`).join(', ')}` : '';
    this.status.textContent = `${baseName(file)}:${line}${from}: ${counts.join(', ')}`;
  }
}
