// SPDX-License-Identifier: Apache-2.0
// Elements without markup: what a peer calls itself is text here, never HTML.

// h('button', {class: 'quiet', onclick: f}, 'Text', child): an element. Properties that begin with "on" are listeners;
// null and false leave an attribute out.
export function h(tag, props = {}, ...children) {
    return fill(document.createElement(tag), props, children);
}

const SVG = 'http://www.w3.org/2000/svg';
export function svg(tag, props = {}, ...children) {
    return fill(document.createElementNS(SVG, tag), props, children);
}

function fill(element, props, children) {
    for (const [name, value] of Object.entries(props)) {
        if (name.startsWith('on')) element.addEventListener(name.slice(2), value);
        else if (value === true) element.setAttribute(name, '');
        else if (value !== null && value !== undefined && value !== false) element.setAttribute(name, value);
    }
    element.append(...children.flat().filter((child) => child !== null && child !== undefined));
    return element;
}

// Only what is new is written: no layout where nothing has changed.
export function setText(element, text) {
    if (element.textContent !== text) element.textContent = text;
}

// A name that is cut in the middle when it is too wide (style.css, .name): its end stays. The whole name is its title.
const TAIL = 12;
export function setName(element, text) {
    if (element.dataset.name === text) return element;
    const letters = [...text], tail = letters.length > TAIL ? Math.min(TAIL, Math.floor(letters.length / 2)) : 0;
    element.dataset.name = text;
    element.classList.add('name');
    element.title = text;
    element.replaceChildren(h('span', {class: 'head'}, letters.slice(0, letters.length - tail).join('')), h('span', {class: 'tail'}, letters.slice(letters.length - tail).join('')));
    return element;
}

export function setAttribute(element, name, value) {
    if (value === null) element.removeAttribute(name);
    else if (element.getAttribute(name) !== String(value)) element.setAttribute(name, value);
}

// A state as a word, a shape and a colour. kind: ok, warn, bad, info, off.
const SHAPES = {ok: '●', warn: '▲', bad: '✕', info: '◆', off: '○'};
export function badge(kind, word, title) {
    return h('span', {class: `badge state-${kind}`, title}, h('span', {class: 'shape', 'aria-hidden': 'true'}, SHAPES[kind]), word);
}
export function setBadge(element, kind, word) {
    const key = `${kind} ${word}`;
    if (element.dataset.state === key) return;
    element.dataset.state = key;
    element.className = `badge state-${kind}`;
    element.replaceChildren(h('span', {class: 'shape', 'aria-hidden': 'true'}, SHAPES[kind]), word);
}

// The colour that a variable of the style sheet has now, for canvases.
let probe = null;
export function color(name) {
    if (!probe) {
        probe = h('span', {hidden: true});
        document.body.append(probe);
    }
    probe.style.color = `var(--${name})`;
    return getComputedStyle(probe).color;
}

// A canvas as wide as its parent and so many CSS pixels high, cleared; its context draws in CSS pixels.
export function canvas(element, height) {
    const width = Math.max(200, element.parentElement.clientWidth), ratio = Math.min(2, window.devicePixelRatio || 1);
    element.style.height = `${height}px`;
    element.width = Math.round(width * ratio);
    element.height = Math.round(height * ratio);
    const context = element.getContext('2d');
    context.scale(ratio, ratio);
    context.clearRect(0, 0, width, height);
    return {context, width, height};
}
