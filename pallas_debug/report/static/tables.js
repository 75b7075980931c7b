// The table of kernels: a filter, and one tab stop, within which the arrow keys move.

function startMatrix(table) {
  const rows = () => findAll('tbody tr', table).filter((row) => !row.hidden);
  const links = () => rows().map((row) => findAll('a', row));
  const stop = (link) => {
    findAll('a', table).forEach((other) => other.setAttribute('tabindex', '-1'));
    link?.setAttribute('tabindex', '0');
  };
  stop(find('tbody a', table));
  table.addEventListener('focusin', (event) => {
    if (event.target.matches('a')) stop(event.target);
  });
  table.addEventListener('keydown', (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const grid = links();
    const row = grid.findIndex((found) => found.includes(event.target));
    if (row < 0) return;
    const at = grid[row].indexOf(event.target);
    const moves = {
      ArrowDown: [row + 1, at], j: [row + 1, at], ArrowUp: [row - 1, at], k: [row - 1, at],
      ArrowLeft: [row, at - 1], h: [row, at - 1], ArrowRight: [row, at + 1], l: [row, at + 1],
      Home: [row, 0], End: [row, Infinity], PageDown: [row + 15, at], PageUp: [row - 15, at],
    };
    if (!(event.key in moves)) return;
    event.preventDefault();
    const [to, column] = moves[event.key];
    const found = grid[clamp(to, 0, grid.length - 1)];
    found[clamp(column, 0, found.length - 1)]?.focus();
  });

  const count = element('span', { class: 'pd-dim', role: 'status', 'aria-live': 'polite' });
  const input = element('input', {
    type: 'search',
    id: 'filter',
    placeholder: 'Filter kernels',
    'aria-label': 'Filter kernels',
    oninput: () => {
      const words = input.value.toLowerCase().split(/\s+/).filter(Boolean);
      for (const row of findAll('tbody tr', table)) {
        row.hidden = !words.every((word) => row.textContent.toLowerCase().includes(word));
      }
      const left = rows();
      count.textContent = words.length ? `${left.length} of ${findAll('tbody tr', table).length}` : '';
      stop(left.length ? find('a', left[0]) : null);
    },
    onkeydown: (event) => {
      if (event.key === 'Escape' && input.value) {
        event.stopPropagation();
        input.value = '';
        input.dispatchEvent(new Event('input'));
      } else if (event.key === 'Enter' || event.key === 'ArrowDown') {
        event.preventDefault();
        links().flat()[0]?.focus();
      }
    },
  });
  table.parentElement.before(element('div', { class: 'pd-filter' }, input, ' ', count));
}
