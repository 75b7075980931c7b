// A list of lines of which only those on the screen are elements: texts have 50,000 lines and more.

const OVERSCAN = 12;

class Lines {
  /**
   * label: accessible name. draw(row, node): fills the element of a row. onchoose(row, index):
   * Enter or a click.
   */
  constructor({ label, draw, onchoose }) {
    this.draw = draw;
    this.onchoose = onchoose;
    this.rows = [];
    this.marks = new Uint8Array(0);
    this.active = -1;
    this.id = freshId('lines');
    this.body = element('div', { class: 'pd-lines-body', role: 'presentation' });
    this.ticks = element('canvas', { class: 'pd-ticks', 'aria-hidden': 'true' });
    this.node = element(
      'div',
      {
        class: 'pd-lines',
        role: 'listbox',
        tabindex: '0',
        'aria-label': label,
        onscroll: () => this.schedule(),
        onclick: (event) => this.clicked(event),
        onkeydown: (event) => this.pressed(event),
        onfocus: () => this.focused(),
      },
      this.body,
    );
    this.root = element('div', { class: 'pd-lines-frame' }, this.node, this.ticks);
    new ResizeObserver(() => {
      this.schedule();
      this.drawTicks();
    }).observe(this.node);
  }

  get height() {
    this.rowHeight ??= parseFloat(getComputedStyle(this.node).getPropertyValue('--row')) || 20;
    return this.rowHeight;
  }

  set label(text) {
    this.node.setAttribute('aria-label', text);
  }

  /** Shows other rows; `width` is the number of characters of the longest. */
  set(rows, width, keepScroll = false) {
    this.rows = rows;
    this.marks = new Uint8Array(rows.length);
    this.active = keepScroll ? Math.min(this.active, rows.length - 1) : -1;
    this.body.style.height = `${rows.length * this.height}px`;
    this.body.style.minWidth = `${width + 12}ch`;
    if (!keepScroll) this.node.scrollTop = this.node.scrollLeft = 0;
    this.drawn = '';
    this.render();
    this.drawTicks();
  }

  schedule() {
    this.pending ??= requestAnimationFrame(() => {
      this.pending = undefined;
      this.render();
    });
  }

  redraw() {
    this.drawn = '';
    this.render();
  }

  render() {
    const top = Math.floor(this.node.scrollTop / this.height) - OVERSCAN;
    const shown = Math.ceil(this.node.clientHeight / this.height) + 2 * OVERSCAN;
    const first = clamp(top, 0, Math.max(0, this.rows.length - 1));
    const last = Math.min(this.rows.length, first + shown);
    const key = `${first}-${last}`;
    if (key === this.drawn) return;
    this.drawn = key;
    const nodes = [];
    for (let n = first; n < last; n++) nodes.push(this.row(n));
    this.body.replaceChildren(...nodes);
    this.point();
  }

  row(n) {
    const mark = this.marks[n];
    const node = element('div', {
      class: `pd-row${mark ? ` pd-linked pd-linked-${mark}` : ''}${n === this.active ? ' pd-active' : ''}`,
      role: 'option',
      id: `${this.id}-${n}`,
      'aria-selected': String(mark > 0),
      'aria-posinset': String(n + 1),
      'aria-setsize': String(this.rows.length),
    });
    node.style.top = `${n * this.height}px`;
    node.dataset.row = n;
    this.draw(this.rows[n], node);
    return node;
  }

  point() {
    const id = `${this.id}-${this.active}`;
    if (this.active >= 0 && document.getElementById(id)) {
      this.node.setAttribute('aria-activedescendant', id);
    } else {
      this.node.removeAttribute('aria-activedescendant');
    }
  }

  /** Marks rows: 2 for those that a line became, 1 for those that pass through it. */
  mark(marks) {
    this.marks = marks;
    this.redraw();
    this.drawTicks();
  }

  focused() {
    if (this.active < 0 && this.rows.length) {
      this.activate(clamp(Math.ceil(this.node.scrollTop / this.height), 0, this.rows.length - 1));
    }
  }

  activate(n, scroll = true) {
    this.active = n;
    if (scroll) this.reveal(n);
    this.redraw();
  }

  /** Scrolls a row into view: to the middle, unless it is visible already. */
  reveal(n) {
    const top = n * this.height;
    const seen = this.node.clientHeight;
    if (top < this.node.scrollTop || top + this.height > this.node.scrollTop + seen) {
      const far = Math.abs(top - this.node.scrollTop) > 2 * seen;
      const step = !far && top + this.height > this.node.scrollTop + seen;
      this.node.scrollTop = far || seen < this.height * 3
        ? top - seen / 3
        : step ? top + this.height * 2 - seen : top - this.height;
    }
  }

  center(n) {
    this.node.scrollTop = n * this.height - this.node.clientHeight / 3;
    this.redraw();
  }

  clicked(event) {
    const row = event.target.closest('.pd-row');
    if (!row || String(getSelection())) return;
    const n = Number(row.dataset.row);
    this.activate(n, false);
    this.onchoose?.(this.rows[n], n);
  }

  pressed(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const page = Math.max(1, Math.floor(this.node.clientHeight / this.height) - 1);
    const last = this.rows.length - 1;
    const moves = {
      ArrowDown: 1, j: 1, ArrowUp: -1, k: -1, PageDown: page, ' ': page, PageUp: -page,
      Home: -Infinity, g: -Infinity, End: Infinity, G: Infinity,
    };
    if (event.key in moves) {
      if (last >= 0) this.activate(clamp(Math.max(this.active, 0) + moves[event.key], 0, last));
    } else if (event.key === 'Enter') {
      if (this.active >= 0) this.onchoose?.(this.rows[this.active], this.active);
    } else if (event.key === 'n' || event.key === 'N') {
      this.next(event.key === 'n' ? 1 : -1);
    } else if (event.key === 'ArrowLeft' || event.key === 'ArrowRight') {
      this.node.scrollLeft += event.key === 'ArrowRight' ? 60 : -60;
    } else return;
    event.preventDefault();
    event.stopPropagation();
  }

  /** Goes to the next or previous marked row. */
  next(step) {
    for (let n = this.active + step; n >= 0 && n < this.rows.length; n += step) {
      if (this.marks[n]) {
        this.activate(n);
        return true;
      }
    }
    return false;
  }

  /** Positions of marked rows beside the scroll bar. */
  drawTicks() {
    const height = this.node.clientHeight;
    const scale = window.devicePixelRatio || 1;
    const canvas = this.ticks;
    canvas.width = 8 * scale;
    canvas.height = Math.max(1, height * scale);
    const context = canvas.getContext('2d');
    const style = getComputedStyle(this.node);
    const colors = ['', style.getPropertyValue('--tick'), style.getPropertyValue('--accent'),
      style.getPropertyValue('--warn')];
    const each = canvas.height / Math.max(1, this.rows.length);
    this.marks.forEach((mark, n) => {
      if (!mark) return;
      context.fillStyle = colors[mark];
      context.fillRect(0, n * each, canvas.width, Math.max(2 * scale, each));
    });
  }
}
