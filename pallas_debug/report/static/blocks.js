// Block map: the blocks of each operand, and a walk through the grid that shows which are touched.

const MAX_WALKED = 200000;
const MAX_CELLS = 1 << 20;
const WIDEST = 300;
const HIGHEST = 190;

class BlockOperand {
  constructor(operand, grid) {
    this.operand = operand;
    this.grid = grid;
    this.counts = operand.dimensions.map((d) => Math.max(1, Math.ceil(d.bound / Math.max(1, d.size))));
    const wide = this.counts.findLastIndex((count) => count > 1);
    this.across = wide < 0 ? this.counts.length - 1 : wide;
    this.columns = this.counts[this.across] ?? 1;
    this.rows = this.counts.reduce((all, count, n) => (n === this.across ? all : all * count), 1);
    this.cells = this.rows * this.columns;
    const each = Math.min(18, WIDEST / this.columns, HIGHEST / this.rows);
    this.each = each > 3 ? Math.floor(each) : each;
    this.canvas = element('canvas', { role: 'img' });
    this.caption = element('figcaption', {});
    this.node = element('figure', { class: 'pd-operand' },
      element('div', { class: 'pd-operand-name' }, element('code', {}, operand.name), ` ${operand.kind}`),
      this.canvas, this.caption);
  }

  get isDrawn() {
    return this.cells <= MAX_CELLS && this.operand.unknown === null && this.operand.dimensions.length > 0;
  }

  /** Index of the block at a grid point; null if it was not recorded. */
  block(position, point, points) {
    const { dimensions } = this.operand;
    const found = [];
    for (const d of dimensions) {
      let index;
      if (d.strides) index = d.strides.reduce((sum, stride, n) => sum + stride * point[n], d.offset);
      else if (d.values) {
        let at = 0;
        for (const axis of d.axes) at = at * this.grid[axis] + point[axis];
        index = d.values[at];
      } else return null;
      found.push(index);
    }
    return found;
  }

  /** Number of the cell of a block; -1 if it lies outside of the array. */
  cell(block) {
    let row = 0;
    for (let n = 0; n < block.length; n++) {
      const d = this.operand.dimensions[n];
      const index = d.kind === 'element' ? Math.floor(block[n] / Math.max(1, d.size)) : block[n];
      if (index < 0 || index >= this.counts[n]) return -1;
      if (n !== this.across) row = row * this.counts[n] + index;
      else this.column = index;
    }
    return row * this.columns + (block.length ? this.column : 0);
  }

  /** Cells of all grid points, in order; -2 for one that was not recorded. */
  walk(points, pointAt) {
    this.path = new Int32Array(points);
    this.names = null;
    for (let position = 0; position < points; position++) {
      const block = this.block(position, pointAt(position), points);
      this.path[position] = block === null ? -2 : this.cell(block);
    }
  }

  draw(position) {
    const scale = devicePixelRatio || 1;
    const width = Math.ceil(this.columns * this.each) + 2;
    const height = Math.max(10, Math.ceil(this.rows * this.each) + 2);
    this.canvas.width = width * scale;
    this.canvas.height = height * scale;
    this.canvas.style.width = `${width}px`;
    this.canvas.style.height = `${height}px`;
    const context = this.canvas.getContext('2d');
    context.setTransform(scale, 0, 0, scale, 1, 1);
    const style = getComputedStyle(this.canvas);
    const color = (name) => style.getPropertyValue(name).trim();
    const copies = new Uint32Array(this.cells);
    let before = -3;
    let total = 0;
    for (let n = 0; n <= position; n++) {
      const cell = this.path[n];
      if (cell >= 0 && cell !== before) {
        copies[cell]++;
        total++;
      }
      before = cell;
    }
    const most = copies.reduce((a, b) => Math.max(a, b), 1);
    const gap = this.each >= 5 ? 1 : 0;
    const size = Math.max(this.each - gap, 0.75);
    const [heat, empty, line] = [color('--heat'), color('--sunken'), color('--line-strong')];
    const done = position === this.path.length - 1;
    let untouched = 0;
    for (let cell = 0; cell < this.cells; cell++) {
      const x = (cell % this.columns) * this.each;
      const y = Math.floor(cell / this.columns) * this.each;
      context.globalAlpha = 1;
      context.fillStyle = empty;
      context.fillRect(x, y, size, size);
      if (copies[cell]) {
        context.globalAlpha = 0.3 + 0.7 * (most > 1 ? copies[cell] / most : 0.4);
        context.fillStyle = heat;
        context.fillRect(x, y, size, size);
      } else {
        untouched++;
        if (this.each >= 5) {
          context.strokeStyle = line;
          context.beginPath();
          context.moveTo(x, y + size);
          context.lineTo(x + size, y);
          context.stroke();
        }
      }
    }
    const now = this.path[position];
    context.globalAlpha = 1;
    if (now >= 0) {
      context.strokeStyle = color('--ink');
      context.lineWidth = 2;
      const [x, y] = [(now % this.columns) * this.each, Math.floor(now / this.columns) * this.each];
      context.strokeRect(x, y, Math.max(size, 3), Math.max(size, 3));
    }
    return { copies: now >= 0 ? copies[now] : 0, total, untouched, most, done };
  }

  show(position, point, points) {
    const block = this.block(position, point, points);
    const now = this.path[position];
    const before = position ? this.path[position - 1] : -3;
    const drawn = this.draw(position);
    const where = block === null ? 'not recorded' : `block (${block.join(', ')})`;
    const verb = this.operand.kind === 'output' ? 'begun' : 'fetched';
    let what = '';
    if (now === -1) what = 'outside the array';
    else if (now >= 0) {
      what = now === before ? 'the same as before'
        : drawn.copies > 1 ? `${verb} again (copy ${drawn.copies})` : verb;
    }
    const so = drawn.done ? '' : ' so far';
    const copies = drawn.total === 1 ? '1 copy' : `${drawn.total.toLocaleString('en')} copies`;
    this.caption.textContent = `${where}${what ? `: ${what}` : ''}. ` +
      `${copies} of ${(this.cells - drawn.untouched).toLocaleString('en')} ` +
      `of ${this.cells.toLocaleString('en')} blocks${so}.`;
    this.canvas.setAttribute('aria-label', `${this.operand.name}, ${this.rows} by ${this.columns} blocks: ${this.caption.textContent}`);
  }
}

class BlockMap {
  constructor(root, blocks) {
    this.grid = blocks.grid;
    this.points = blocks.grid.reduce((all, size) => all * size, 1);
    this.walked = Math.min(this.points, MAX_WALKED);
    const operands = blocks.operands.map((operand) => new BlockOperand(operand, blocks.grid));
    this.operands = operands.filter((operand) => operand.isDrawn);
    if (!this.operands.length || this.points < 1) return;
    this.operands.forEach((operand) => operand.walk(this.walked, (n) => this.point(n)));
    this.position = this.walked - 1;
    const step = (sign, by, label) => element('button', {
      type: 'button', class: 'pd-icon', 'aria-label': label, title: label, onclick: () => this.move(this.position + by),
    }, sign);
    this.slider = element('input', {
      type: 'range', min: '0', max: String(this.walked - 1), step: '1', value: String(this.position),
      'aria-label': 'Grid point', oninput: () => this.move(Number(this.slider.value)),
    });
    this.readout = element('span', { class: 'pd-readout', role: 'status', 'aria-live': 'polite' });
    const cut = this.walked < this.points
      ? element('p', { class: 'pd-dim' }, `The first ${this.walked.toLocaleString('en')} of ` +
        `${this.points.toLocaleString('en')} grid points; the table counts all.`) : null;
    root.append(
      element('div', { class: 'pd-walk' }, step('‹', -1, 'Previous grid point'), this.slider,
        step('›', 1, 'Next grid point'), this.readout),
      ...[cut].filter(Boolean),
      element('div', { class: 'pd-operands' }, ...this.operands.map((operand) => operand.node)),
    );
    document.addEventListener('theme', () => this.show());
    matchMedia('(prefers-color-scheme: dark)').addEventListener('change', () => this.show());
    this.show();
  }

  point(position) {
    const found = [];
    for (let axis = this.grid.length - 1; axis >= 0; axis--) {
      found.unshift(position % this.grid[axis]);
      position = Math.floor(position / this.grid[axis]);
    }
    return found;
  }

  move(position) {
    this.position = clamp(position, 0, this.walked - 1);
    this.slider.value = String(this.position);
    this.show();
  }

  show() {
    const point = this.point(this.position);
    const text = `grid point (${point.join(', ')}), ${(this.position + 1).toLocaleString('en')} of ` +
      `${this.points.toLocaleString('en')}`;
    this.readout.textContent = text;
    this.slider.setAttribute('aria-valuetext', text);
    this.operands.forEach((operand) => operand.show(this.position, point, this.points));
  }
}
