// Heat strip: the use of each unit over the bundles, with a cursor. Only what is on the screen is
// drawn; where a pixel stands for several bundles, it shows their mean.

const STRIP_ROW = 15;
const LOOP_ROW = 5;
const ZOOMS = [0, 2, 4, 8, 14];

class Strip {
  constructor(root, data, chunk, explorer, label) {
    this.data = data;
    this.chunk = chunk;
    this.explorer = explorer;
    this.text = chunk.texts.find((text) => text.name === 'bundles');
    this.columns = data.columns.map((runs) => Uint16Array.from(expanded(runs)));
    this.runs = expanded(data.runs);
    this.cursor = 0;
    this.zoom = 0;
    this.marked = new Uint8Array(data.count);
    this.depth = 0;
    for (let n = 2; n < data.loops.length; n += 3) this.depth = Math.max(this.depth, data.loops[n] + 1);
    this.depth = Math.min(this.depth, 6);
    this.top = this.depth * LOOP_ROW + 3;
    this.height = this.top + data.units.length * STRIP_ROW + 9;
    this.readout = element('p', { class: 'pd-readout' });
    this.canvas = element('canvas', { 'aria-hidden': 'true' });
    this.spacer = element('div', { class: 'pd-strip-spacer' }, this.canvas);
    this.scroller = element('div', {
      class: 'pd-strip-scroll',
      role: 'slider',
      tabindex: '0',
      'aria-label': `Use of units over the bundles of ${label}`,
      'aria-valuemin': '0',
      'aria-valuemax': String(data.count - 1),
      onscroll: () => this.draw(),
      onkeydown: (event) => this.pressed(event),
      onclick: (event) => this.clicked(event),
      onmousemove: (event) => this.point(this.at(event)),
      onmouseleave: () => this.point(null),
    }, this.spacer);
    const names = element('div', { class: 'pd-strip-names', 'aria-hidden': 'true' },
      ...data.units.map((name, n) => {
        const node = element('span', {}, name);
        node.style.top = `${this.top + n * STRIP_ROW}px`;
        return node;
      }));
    names.style.height = this.scroller.style.height = `${this.height}px`;
    const zoom = (sign, by, name) => element('button', {
      type: 'button', class: 'pd-icon', 'aria-label': name, title: name, onclick: () => this.setZoom(this.zoom + by),
    }, sign);
    this.legend = element('span', { class: 'pd-dim pd-legend', 'aria-hidden': 'true' }, 'idle ',
      ...[0, 0.25, 0.5, 0.75, 1].map((share) => {
        const node = element('i', {});
        node.style.setProperty('--use', `${Math.round(share * 100)}%`);
        return node;
      }), ' full');
    root.append(
      element('div', { class: 'pd-strip-head' },
        element('h3', {}, 'Units over bundles'), this.legend, zoom('−', -1, 'Zoom out'), zoom('+', 1, 'Zoom in')),
      element('div', { class: 'pd-strip-body' }, names, this.scroller),
      this.readout,
    );
    new ResizeObserver(() => this.resize()).observe(this.scroller);
    document.addEventListener('theme', () => this.draw());
    matchMedia('(prefers-color-scheme: dark)').addEventListener('change', () => this.draw());
    this.say();
  }

  resize() {
    const width = this.scroller.clientWidth;
    this.each = Math.max(ZOOMS[this.zoom], width / this.data.count);
    this.spacer.style.width = `${Math.max(width, Math.floor(this.each * this.data.count))}px`;
    const scale = devicePixelRatio || 1;
    this.canvas.width = Math.max(1, Math.round(width * scale));
    this.canvas.height = Math.round(this.height * scale);
    this.canvas.style.width = `${width}px`;
    this.canvas.style.height = `${this.height}px`;
    this.draw();
  }

  setZoom(zoom) {
    this.zoom = clamp(zoom, 0, ZOOMS.length - 1);
    this.resize();
    this.reveal();
  }

  draw() {
    if (!this.each) return;
    const scale = devicePixelRatio || 1;
    const context = this.canvas.getContext('2d');
    const style = getComputedStyle(this.scroller);
    const color = (name) => style.getPropertyValue(name).trim();
    const width = this.canvas.width / scale;
    const left = this.scroller.scrollLeft;
    context.setTransform(scale, 0, 0, scale, 0, 0);
    context.clearRect(0, 0, width, this.height);
    const { count, capacity, loops } = this.data;
    const first = Math.floor(left / this.each);
    const last = Math.min(count, Math.ceil((left + width) / this.each));

    context.fillStyle = color('--tick');
    for (let n = 0; n < loops.length; n += 3) {
      const [start, stop, depth] = loops.slice(n, n + 3);
      if (depth >= this.depth) continue;
      const x = start * this.each - left;
      context.fillRect(x, depth * LOOP_ROW, Math.max(1, (stop - start) * this.each - 1), LOOP_ROW - 2);
    }
    const ink = color('--heat');
    const empty = color('--sunken');
    const bins = this.each >= 1 ? last - first : Math.ceil(width);
    this.columns.forEach((column, unit) => {
      const y = this.top + unit * STRIP_ROW;
      context.globalAlpha = 1;
      context.fillStyle = empty;
      context.fillRect(0, y, Math.min(width, count * this.each - left), STRIP_ROW - 2);
      context.fillStyle = ink;
      for (let bin = 0; bin < bins; bin++) {
        const from = this.each >= 1 ? first + bin : Math.floor((left + bin) / this.each);
        const to = this.each >= 1 ? from + 1 : Math.max(from + 1, Math.floor((left + bin + 1) / this.each));
        let sum = 0;
        for (let n = from; n < to && n < count; n++) sum += column[n];
        if (!sum) continue;
        const share = sum / (to - from) / (capacity[unit] || 1);
        context.globalAlpha = 0.18 + 0.82 * Math.min(1, share);
        const x = this.each >= 1 ? from * this.each - left : bin;
        const gap = this.each >= 4 ? 1 : 0;
        context.fillRect(x, y, Math.max(1, this.each - gap), STRIP_ROW - 2);
      }
    });
    context.globalAlpha = 1;
    const bottom = this.height - 7;
    context.fillStyle = color('--accent');
    this.marked.forEach((mark, n) => {
      if (mark) context.fillRect(n * this.each - left, bottom, Math.max(1.5, this.each), mark === 2 ? 6 : 3);
    });
    context.strokeStyle = color('--ink');
    context.lineWidth = 1;
    const x = this.cursor * this.each - left;
    context.strokeRect(x - 0.5, this.top - 1.5, Math.max(2, this.each) + 1, this.height - this.top - 8);
  }

  at(event) {
    const x = event.clientX - this.scroller.getBoundingClientRect().left + this.scroller.scrollLeft;
    return clamp(Math.floor(x / this.each), 0, this.data.count - 1);
  }

  clicked(event) {
    this.move(this.at(event));
    this.open();
  }

  pressed(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const page = Math.max(8, Math.floor(this.data.count / 20));
    const moves = {
      ArrowLeft: -1, ArrowDown: -1, h: -1, ArrowRight: 1, ArrowUp: 1, l: 1,
      PageDown: page, PageUp: -page, Home: -Infinity, End: Infinity,
    };
    if (event.key in moves) this.move(this.cursor + moves[event.key]);
    else if (event.key === '+' || event.key === '=') this.setZoom(this.zoom + 1);
    else if (event.key === '-') this.setZoom(this.zoom - 1);
    else if (event.key === 'Enter') this.open();
    else return;
    event.preventDefault();
  }

  move(bundle) {
    this.cursor = clamp(bundle, 0, this.data.count - 1);
    this.reveal();
    this.draw();
    this.say();
  }

  reveal() {
    const x = this.cursor * this.each;
    const { scrollLeft, clientWidth } = this.scroller;
    if (x < scrollLeft || x > scrollLeft + clientWidth - this.each) {
      this.scroller.scrollLeft = x - clientWidth / 2;
    }
  }

  /** Shows the bundle, and selects its first Python line. */
  open() {
    const row = this.data.starts[this.cursor];
    if (row !== undefined) this.explorer.showBundle(this.firstLinked(row));
  }

  firstLinked(row) {
    const stop = this.data.starts[this.cursor + 1] ?? this.text.lines.length;
    for (let n = row; n < stop; n++) if (this.text.chainOf[n] >= 0) return n;
    return row;
  }

  point(bundle) {
    this.readout.textContent = this.describe(bundle ?? this.cursor);
  }

  say() {
    const text = this.describe(this.cursor);
    this.readout.textContent = text;
    this.scroller.setAttribute('aria-valuenow', String(this.cursor));
    this.scroller.setAttribute('aria-valuetext', text);
  }

  describe(n) {
    const { units, capacity, numbers, loops } = this.data;
    const used = units
      .map((name, unit) => [name, this.columns[unit][n], capacity[unit]])
      .filter(([, count]) => count)
      .map(([name, count, of]) => `${name} ${count}/${of}`);
    let depth = 0;
    for (let at = 0; at < loops.length; at += 3) depth += loops[at] <= n && n < loops[at + 1];
    const parts = [`bundle ${numbers.length ? `0x${numbers[n].toString(16)}` : n}`];
    if (this.runs.length) parts.push(`runs ${counted(this.runs[n], 'time')}`);
    if (depth) parts.push(`in ${counted(depth, 'loop')}`);
    parts.push(used.length ? used.join(', ') : 'no unit in use');
    const lines = this.linesOf(n);
    if (lines) parts.push(lines);
    return parts.join(' · ');
  }

  linesOf(bundle) {
    if (!this.text?.lines || !this.data.starts.length) return '';
    const names = new Set();
    const stop = this.data.starts[bundle + 1] ?? this.text.lines.length;
    for (let row = this.data.starts[bundle]; row < stop; row++) {
      const chain = this.text.chainOf[row];
      const own = chain < 0 ? [] : placesOf(this.chunk, chain);
      const place = own.find(({ file }) => file === this.explorer.kernel.file) ?? own[0];
      if (place) names.add(`${baseName(place.file)}:${place.line}`);
    }
    return [...names].slice(0, 4).join(', ');
  }

  /** Marks the bundles of a Python line. */
  mark(place) {
    this.marked.fill(0);
    if (place && this.text?.lines && this.data.starts.length) {
      const chains = chainsWith(this.chunk, place.file, place.line);
      let bundle = 0;
      for (let row = 0; row < this.text.lines.length; row++) {
        while (this.data.starts[bundle + 1] <= row) bundle++;
        const mark = chains.get(this.text.chainOf[row]) ?? 0;
        this.marked[bundle] = Math.max(this.marked[bundle], mark);
      }
    }
    this.draw();
  }
}
