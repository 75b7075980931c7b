// The filter of the table of kernels.

function startMatrix(table) {
  const rows = () => findAll('tbody tr', table).filter((row) => !row.hidden);
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
    },
    onkeydown: (event) => {
      if (event.key === 'Escape' && input.value) {
        event.stopPropagation();
        input.value = '';
        input.dispatchEvent(new Event('input'));
      } else if (event.key === 'Enter') {
        find('a', rows()[0])?.focus();
      }
    },
  });
  table.parentElement.before(element('div', { class: 'pd-filter' }, input, ' ', count));
}
