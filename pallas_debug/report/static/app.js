// What is shown: the overview or a kernel, for a target, at a text and a line, as the address says.

const KEYS = [
  ['?', 'show these keys'],
  ['Tab', 'next control; each list of lines is one stop'],
  ['Arrows, j k', 'move by lines'],
  ['Page Up, Page Down, Home, End', 'move by pages, to the first and last line'],
  ['Enter', 'on a line: select its Python line in all texts'],
  ['n, N', 'next, previous selected line of this text'],
  ['[, ]', 'previous, next text'],
  ['d', 'compare with the previous text, or stop comparing'],
  ['s', 'show or hide the second text: the same for another target or dump'],
  ['<, >', 'move the edge between source and text, which can be dragged, too'],
  ['t', 'next target'],
  ['Left, Right, +, −', 'on the heat strip: move by bundles, zoom; Enter shows the bundle'],
  ['/', 'find in the text; filter kernels'],
  ['c', 'change between light, dark and automatic colours'],
  ['Escape', 'back to the overview'],
];

const state = { kernels: new Map(), explorers: new Map(), current: null, target: 0 };

async function start() {
  startTheme();
  startKeys();
  findAll('.pd-matrix').forEach(startMatrix);
  try {
    const index = await unpacked('index');
    index.kernels.forEach((kernel) => state.kernels.set(kernel.id, kernel));
  } catch (error) {
    find('#main').prepend(element('p', { class: 'pd-problem', role: 'alert' },
      `The data of this page cannot be read: ${error.message}. Write the report again.`));
  }
  addEventListener('hashchange', () => route(true));
  document.addEventListener('keydown', pressed);
  await route(false);
  document.documentElement.dataset.ready = 'true';
}

function parsed() {
  const [id, ...rest] = location.hash.slice(1).split('/').map(decodeURIComponent);
  const found = { id, target: null, line: null, name: null };
  for (const part of rest) {
    if (/^t\d+$/.test(part)) found.target = Number(part.slice(1));
    else if (/^l\d+$/.test(part)) found.line = Number(part.slice(1));
    else if (part) found.name = part;
  }
  return found;
}

async function route(moved) {
  let wanted;
  try {
    wanted = parsed();
  } catch {
    wanted = { id: '', target: null, line: null, name: null };
  }
  if (wanted.id === 'main') return;
  const kernel = state.kernels.get(wanted.id);
  const view = document.getElementById(kernel ? kernel.id : 'overview');
  const changed = view !== state.current;
  findAll('.pd-view.pd-current').forEach((other) => {
    if (other !== view) other.classList.remove('pd-current');
  });
  view.classList.add('pd-current');
  state.current = view;
  crumbs(kernel);
  if (changed) {
    scrollTo(0, 0);
    const heading = find('h1, h2', view);
    heading.tabIndex = -1;
    if (moved) heading.focus({ preventScroll: true });
  }
  parts(view);
  if (!kernel) return;
  const targets = kernel.targets.length;
  const target = clamp(wanted.target ?? (targets > state.target ? state.target : 0), 0, Math.max(0, targets - 1));
  state.target = target;
  showTarget(view, target);
  parts(view);
  if (!state.explorers.has(kernel.id)) {
    state.explorers.set(kernel.id, new Explorer(kernel, find('[data-explorer]', view)));
  }
  const explorer = state.explorers.get(kernel.id);
  await startStrip(view, kernel, explorer, target);
  parts(view);
  await explorer.setTarget(target, wanted.name, wanted.line);
  if (wanted.name !== null || wanted.line !== null) {
    find('[data-explorer]', view).scrollIntoView({
      block: 'center',
      behavior: reducedMotion() ? 'auto' : 'smooth',
    });
  }
}

/** The strip of a target, when it is first shown. */
async function startStrip(view, kernel, explorer, target) {
  const holder = find(`[data-strip="${kernel.id}/${target}"]`, view);
  explorer.strips ??= [];
  if (holder && !explorer.strips[target]) {
    const chunk = await explorer.schedule(target);
    if (chunk?.strip) {
      const label = `${kernel.name} on ${kernel.targets[target]}`;
      explorer.strips[target] = new Strip(holder, chunk.strip, chunk, explorer, label);
    }
  }
  explorer.strip = explorer.strips[target] ?? null;
}

function showTarget(view, target) {
  for (const part of findAll('.pd-target', view)) {
    part.classList.toggle('pd-current', Number(part.dataset.target) === target);
  }
  findAll('.pd-tabs a', view).forEach((link, n) => {
    if (n === target) link.setAttribute('aria-current', 'true');
    else link.removeAttribute('aria-current');
  });
}

function crumbs(kernel) {
  const parts = [];
  if (kernel) {
    parts.push(
      element('a', { href: '#overview' }, 'Overview'),
      element('span', { 'aria-hidden': 'true' }, '›'),
      element('span', { 'aria-current': 'page', class: 'pd-crumb' }, kernel.name),
    );
  }
  find('#crumbs').replaceChildren(...parts);
}

/** Buttons for the parts of a view, which is several screens long. */
function parts(view) {
  const shown = findAll(view.id === 'overview' ? 'h2' : 'h3', view).filter((title) =>
    !title.classList.contains('pd-target-name') && title.closest('.pd-target:not(.pd-current)') === null);
  const nav = find('#parts');
  nav.hidden = shown.length < 2;
  nav.replaceChildren(...shown.map((title) => element('button', {
    type: 'button',
    onclick: () => {
      title.tabIndex = -1;
      title.focus({ preventScroll: true });
      title.parentElement.closest('section, .pd-strip').scrollIntoView({ behavior: reducedMotion() ? 'auto' : 'smooth' });
    },
  }, title.textContent)));
}

const THEMES = { auto: 'automatic', light: 'light', dark: 'dark' };

function startTheme() {
  const button = element('button', {
    type: 'button', id: 'theme', class: 'pd-button', onclick: () => nextTheme(),
  });
  find('#tools').append(button);
  setTheme('auto');
}

function setTheme(theme) {
  if (theme === 'auto') delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = theme;
  const sign = { auto: '◐', light: '○', dark: '●' }[theme];
  const button = find('#theme');
  button.replaceChildren(element('span', { 'aria-hidden': 'true' }, sign));
  button.setAttribute('aria-label', `Colours: ${THEMES[theme]}`);
  button.title = `Colours: ${THEMES[theme]} (c)`;
  button.dataset.value = theme;
  document.dispatchEvent(new CustomEvent('theme'));
}

function nextTheme() {
  const names = Object.keys(THEMES);
  setTheme(names[(names.indexOf(find('#theme').dataset.value) + 1) % names.length]);
}

function startKeys() {
  const rows = KEYS.map(([keys, what]) => element('tr', {},
    element('th', { scope: 'row' }, keys.split(', ').flatMap((key, n) => [n ? ' ' : null, element('kbd', {}, key)])),
    element('td', {}, what)));
  const dialog = element('dialog', { id: 'keys', 'aria-labelledby': 'keys-title' },
    element('h2', { id: 'keys-title' }, 'Keys'),
    element('table', {}, element('tbody', {}, rows)),
    element('button', { type: 'button', class: 'pd-button', onclick: () => dialog.close() }, 'Close'));
  document.body.append(dialog);
  find('#tools').append(element('button', {
    type: 'button', class: 'pd-button', 'aria-label': 'Keys', title: 'Keys (?)', onclick: () => dialog.showModal(),
  }, '?'));
}

function pressed(event) {
  if (event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey) return;
  if (isTyping(event) || find('#keys').open) return;
  const view = state.current;
  const explorer = state.explorers.get(view?.id);
  const pane = explorer?.visible().find((p) => p.node.contains(document.activeElement)) ?? explorer?.texts[0];
  const actions = {
    '?': () => find('#keys').showModal(),
    '/': () => (explorer ? pane.search : find('#filter'))?.focus(),
    c: () => nextTheme(),
    Escape: () => explorer && (location.hash = '#overview'),
    '[': () => pane?.step(-1),
    ']': () => pane?.step(1),
    d: () => pane && togglePrevious(explorer, pane),
    '<': () => explorer?.edges[0].move(-60),
    '>': () => explorer?.edges[0].move(60),
    s: () => explorer?.setSplit(explorer.texts[1].node.hidden),
    t: () => {
      const { targets } = state.kernels.get(view.id) ?? { targets: [] };
      if (targets.length > 1) location.hash = `#${view.id}/t${(state.target + 1) % targets.length}`;
    },
  };
  if (!(event.key in actions)) return;
  event.preventDefault();
  actions[event.key]();
}

function togglePrevious(explorer, pane) {
  const keys = [...pane.select.options].map((option) => option.value);
  const at = keys.indexOf(pane.choice);
  pane.show(pane.choice, pane.base || at < 1 ? '' : keys[at - 1]);
}

start();
