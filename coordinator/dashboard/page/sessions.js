// SPDX-License-Identifier: Apache-2.0
// The sessions, sorted and filtered by the coordinator, a page at a time as they come into view. Only rows in view exist.
import {poll} from './api.js';
import {h, setBadge, setText} from './dom.js';
import {bytes, count, duration} from './format.js';

const ROW = 32, PAGE = 100, POLL_MS = 3000, MARGIN = 6;
const KINDS = {active: 'ok', degraded: 'warn', unavailable: 'bad'};
const COLUMNS = [
    ['name', 'Session', (s) => `${s.tenant && s.tenant !== 'default' ? `${s.tenant}/` : ''}${s.name || s.id}`],
    ['state', 'State', null],
    ['tokens', 'Tokens', (s) => count(s.tokens)],
    ['bytes', 'K and V', (s) => bytes(s.bytes)],
    ['chunks', 'Chunks', (s) => (s.thin_chunks ? `${count(s.chunks)}, ${count(s.thin_chunks)} thin` : count(s.chunks))],
    [null, 'Workers', (s) => `${count(s.members)}${s.replicas > 1 ? ` × ${s.replicas}` : ''}`],
    ['steps', 'Steps', (s) => count(s.steps)],
    ['idle', 'Idle', (s) => duration(s.idle_ns)],
];

export function open(main, page, words) {
    const given = new URLSearchParams(words || '');
    let sort = given.get('sort') || 'name', order = given.get('order') || 'up', total = 0, current = 0, made = [];
    const pages = new Map(), wanted = new Set();

    const filter = h('input', {type: 'search', placeholder: 'Name or id', 'aria-label': 'Filter sessions by name or id', maxlength: 60, value: given.get('q') || ''});
    const state = h('select', {'aria-label': 'State'}, [['', 'All states'], ['active', 'Active'], ['degraded', 'Degraded'], ['unavailable', 'Unavailable']].map(([value, text]) => h('option', {value}, text)));
    state.value = given.get('state') || '';
    const said = h('span', {class: 'muted small', role: 'status'});
    const heads = COLUMNS.map(([key, title], i) => h('div', {role: 'columnheader', class: i > 1 ? 'num' : null, 'aria-colindex': i + 1},
        key ? h('button', {type: 'button', onclick: () => sortBy(key)}, title) : title));
    const space = h('div', {role: 'presentation'}), empty = h('p', {class: 'empty', hidden: true});
    const view = h('div', {class: 'grid-view', role: 'rowgroup', tabindex: '-1', onclick: click}, space);
    const grid = h('div', {class: 'grid', role: 'grid', tabindex: '0', 'aria-label': 'Sessions; arrows choose, Enter opens', 'aria-colcount': COLUMNS.length, onkeydown: key}, h('div', {role: 'rowgroup'}, h('div', {class: 'grid-head', role: 'row'}, heads)), view);
    main.append(h('h1', {class: 'hidden-text'}, 'Sessions'), h('section', {class: 'panel', 'aria-labelledby': 'sessions-title'},
        h('header', {}, h('h2', {id: 'sessions-title'}, 'Sessions'), said, h('span', {class: 'grow'}), state, filter), grid, empty));

    // ---- what is asked ----
    const query = () => Object.fromEntries(Object.entries({sort, order, q: filter.value.trim(), state: state.value}).filter(([, value]) => value));
    function nothing(why) {
        total = 0;
        pages.clear();
        setText(said, '');
        setText(empty, why);
        empty.hidden = false;
        draw();
    }
    async function load(at) {
        const asked = JSON.stringify(query()), still = () => asked === JSON.stringify(query());
        if (wanted.has(at)) return;
        wanted.add(at);
        try {
            const answer = await page.ask('sessions', {...query(), limit: PAGE, offset: at * PAGE}, still);
            if (!still()) return;
            total = answer.sorted;
            pages.set(at, answer.sessions);
            setText(said, answer.matching === answer.total ? count(answer.total) : `${count(answer.matching)} of ${count(answer.total)}`);
            empty.hidden = total > 0;
            setText(empty, answer.total ? 'No matching sessions.' : 'No sessions yet. Create one from an engine, or with: banyanctl session create NAME');
            grid.setAttribute('aria-rowcount', total + 1);
        } catch (error) {
            if (!still()) return; // something else is asked for meanwhile
            if (error.status === 400) nothing(error.message);
            throw error;
        } finally {
            wanted.delete(at);
        }
        draw();
    }
    function inView() {
        const from = Math.max(0, Math.floor(view.scrollTop / ROW) - MARGIN), to = Math.min(total, Math.ceil((view.scrollTop + view.clientHeight) / ROW) + MARGIN);
        return [from, to];
    }
    async function refresh() {
        const [from, to] = inView(), asked = [];
        for (let at = Math.floor(from / PAGE); at <= Math.floor(Math.max(from, to - 1) / PAGE); at++) asked.push(load(at));
        for (const at of pages.keys()) if (Math.abs(at * PAGE - from) > 20 * PAGE) pages.delete(at); // far away
        await Promise.all(asked);
    }

    // ---- rows ----
    function make() {
        const row = {cells: COLUMNS.map((_, i) => h('div', {role: 'gridcell', class: i > 1 ? 'num' : null, 'aria-colindex': i + 1}))};
        row.badge = h('span', {class: 'badge'});
        row.cells[1].append(row.badge);
        row.element = h('div', {class: 'grid-row', role: 'row'}, row.cells);
        return row;
    }
    function draw() {
        const [from, to] = inView();
        const height = `${total * ROW}px`;
        if (space.style.height !== height) space.style.height = height;
        while (made.length < to - from) {
            made.push(make());
            space.append(made[made.length - 1].element);
        }
        current = Math.min(current, Math.max(0, total - 1));
        made.forEach((row, i) => {
            const at = from + i, s = at < to ? pages.get(Math.floor(at / PAGE))?.[at % PAGE] : undefined, {element} = row;
            element.hidden = at >= to;
            if (element.hidden) return;
            if (row.at !== at) {
                row.at = at;
                element.style.transform = `translateY(${at * ROW}px)`;
                element.id = `session-${at}`;
                element.setAttribute('aria-rowindex', at + 2);
            }
            element.classList.toggle('current', at === current);
            COLUMNS.forEach(([, , text], c) => text && setText(row.cells[c], s ? text(s) : c ? '' : s === null ? 'deleted' : '…'));
            if (s) setBadge(row.badge, KINDS[s.state] || 'off', s.state);
            row.badge.hidden = !s;
        });
        grid.setAttribute('aria-activedescendant', `session-${current}`);
    }
    let frame = 0, timer = 0;
    view.addEventListener('scroll', () => {
        cancelAnimationFrame(frame);
        frame = requestAnimationFrame(draw);
        clearTimeout(timer);
        timer = setTimeout(() => refresh().catch(() => {}), 60);
    }, {passive: true});

    // ---- what people do ----
    function sortBy(name) {
        order = sort === name ? (order === 'up' ? 'down' : 'up') : ['name', 'state'].includes(name) ? 'up' : 'down';
        sort = name;
        anew();
    }
    function anew() {
        pages.clear();
        wanted.clear();
        view.scrollTop = current = 0;
        const text = new URLSearchParams(query()).toString();
        history.replaceState(null, '', `#/sessions${text && text !== 'sort=name&order=up' ? `?${text}` : ''}`);
        headings();
        polling.now();
        load(0).catch(() => {});
    }
    function headings() {
        COLUMNS.forEach(([name], i) => {
            if (name === sort) heads[i].setAttribute('aria-sort', order === 'up' ? 'ascending' : 'descending');
            else heads[i].removeAttribute('aria-sort');
        });
    }
    let typing = 0;
    filter.addEventListener('input', () => {
        clearTimeout(typing);
        typing = setTimeout(anew, 150);
    });
    state.addEventListener('change', anew);
    function go(at) {
        const s = pages.get(Math.floor(at / PAGE))?.[at % PAGE];
        if (s) location.hash = `#/sessions/${s.id}`;
    }
    function click(event) {
        const row = made.find((one) => one.element.contains(event.target));
        if (row) go(row.at);
    }
    function key(event) {
        const screen = Math.max(1, Math.floor(view.clientHeight / ROW) - 1);
        const to = {ArrowDown: current + 1, ArrowUp: current - 1, PageDown: current + screen, PageUp: current - screen, Home: 0, End: total - 1}[event.key];
        if (event.target !== grid) return; // a heading's button
        if (event.key === 'Enter') go(current);
        if (to === undefined || !total) return;
        event.preventDefault();
        current = Math.max(0, Math.min(total - 1, to));
        const top = current * ROW;
        if (top < view.scrollTop) view.scrollTop = top;
        else if (top + ROW > view.scrollTop + view.clientHeight) view.scrollTop = top + ROW - view.clientHeight;
        draw();
    }
    headings();
    const polling = poll(refresh, POLL_MS);
    return {now: polling.now, same: () => true, stop: () => polling.stop()};
}
