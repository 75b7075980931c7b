// Elements, and small helpers over the DOM. Text never becomes markup: nothing here sets HTML.

const find = (selector, root = document) => root.querySelector(selector);
const findAll = (selector, root = document) => [...root.querySelectorAll(selector)];

/** An element with attributes, listeners (`onclick`) and children; null children are skipped. */
function element(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (key.startsWith('on')) made.addEventListener(key.slice(2), value);
    else made.setAttribute(key, value === true ? '' : value);
  }
  made.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return made;
}

const counted = (count, noun) =>
  `${count.toLocaleString('en')} ${noun}${count === 1 ? '' : noun.endsWith('s') ? 'es' : 's'}`;

const clamp = (value, low, high) => Math.max(low, Math.min(high, value));

const reducedMotion = () => matchMedia('(prefers-reduced-motion: reduce)').matches;

/** Whether a key goes to a control that takes text. */
const isTyping = (event) =>
  event.target.matches?.('input:not([type=checkbox]):not([type=range]), select, textarea');

let numbered = 0;
const freshId = (prefix) => `${prefix}-${++numbered}`;
