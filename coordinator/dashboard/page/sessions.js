// SPDX-License-Identifier: Apache-2.0
// The sessions, sorted and filtered by the coordinator, a page at a time as they come into view. Only rows in view exist.
import {poll} from './api.js';
import {h, setAttribute, setBadge, setName, setText} from './dom.js';
import {bytes, count, duration} from './format.js';

const PAGE = 100, POLL_MS = 3000, MARGIN = 6;
const KINDS = {active: 'ok', degraded: 'warn', unavailable: 'bad'};
const COLUMNS = [
    ['name', 'Session', (s) => `${s.tenant && s.tenant !== 'default' ? `${s.tenant}/` : ''}${s.name || s.id}`],
    ['state', 'State', null],
    ['tokens', 'Tokens', (s) => count(s.tokens)],
    ['bytes', 'K and V', (s) => bytes(s.bytes)],
    ['chunks', 'Chunks', (s) => (s.thin_chunks ? `${count(s.chunks)}, ${count(s.thin_chunks)} short` : count(s.chunks))],
    [null, 'Workers', (s) => count(s.members)],
    [null, 'Copies', (s) => count(s.replicas)],
    ['steps', 'Steps', (s) => count(s.steps)],
    ['idle', 'Idle', (s) => duration(s.idle_ns)],
];
// On a narrow screen a row is a card of two lines: the name and the state, and these columns below them.
const CARD = {tokens: ' tokens', bytes: '', idle: ' idle'};
const NARROW = matchMedia('(max-width: 700px)'); // style.css says so, too
const rowHeight = () => (NARROW.matches ? 56 : 32);

export function open(main, page, words) {
    const given = new URLSearchParams(words || '');
    let sort = given.get('sort') || 'name', order = given.get('order') || 'up', total = 0, current = 0, made = [];
    const pages = new Map(), wanted = new Set();

    const filter = h('input', {type: 'search', placeholder: 'Name or id', 'aria-label': 'Filter sessions by name or id', maxlength: 60, value: given.get('q') || ''});
    const state = h('select', {'aria-label': 'State'}, [['', 'All states'], ['active', 'Active'], ['degraded', 'Degraded'], ['unavailable', 'Unavailable']].map(([value, text]) => h('option', {value}, text)));
    state.value = given.get('state') || '';
    const said = h('span', {class: 'muted small', role: 'status'});
    const sorts = COLUMNS.filter(([key]) => key).flatMap(([key, title]) => ['up', 'down'].map((way) => [`${key} ${way}`, `${title} ${way === 'up' ? '▲' : '▼'}`]));
    const choice = h('select', {class: 'narrow', 'aria-label': 'Order', onchange: () => {
        [sort, order] = choice.value.split(' ');
        anew();
    }}, sorts.map(([value, text]) => h('option', {value}, text)));
    const heads = COLUMNS.map(([key, title], i) => h('div', {role: 'columnheader', class: i > 1 ? 'num' : null, 'aria-colindex': i + 1},
        key ? h('button', {type: 'button', onclick: () => sortBy(key)}, title) : title));
    const space = h('div', {role: 'presentation'}), empty = h('p', {class: 'empty', hidden: true});
    const view = h('div', {class: 'grid-view', role: 'rowgroup', tabindex: '-1', onclick: click}, space);
    const grid = h('div', {class: 'grid', role: 'grid', tabindex: '0', 'aria-label': 'Sessions: select with the arrow keys, open with Enter', 'aria-colcount': COLUMNS.length, onkeydown: key}, h('div', {role: 'rowgroup'}, h('div', {class: 'grid-head', role: 'row'}, heads)), view);
    main.append(h('h1', {class: 'hidden-text'}, 'Sessions'), h('section', {class: 'panel', 'aria-labelledby': 'sessions-title'},
        h('header', {}, h('h2', {id: 'sessions-title'}, 'Sessions'), said, h('span', {class: 'grow'}), choice, state, filter), grid, empty));

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
            grid.hidden = !answer.total;
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
        const tall = rowHeight();
        return [Math.max(0, Math.floor(view.scrollTop / tall) - MARGIN), Math.min(total, Math.ceil((view.scrollTop + view.clientHeight) / tall) + MARGIN)];
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
        row.name = h('span');
        row.cells[0].append(row.name);
        COLUMNS.forEach(([key], i) => key in CARD && row.cells[i].classList.add('card'));
        row.element = h('div', {class: 'grid-row', role: 'row'}, row.cells);
        return row;
    }
    function draw() {
        const [from, to] = inView(), tall = rowHeight();
        const height = `${total * tall}px`;
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
            if (row.at !== at || row.tall !== tall) {
                row.at = at;
                row.tall = tall;
                element.style.transform = `translateY(${at * tall}px)`;
                element.id = `session-${at}`;
                element.setAttribute('aria-rowindex', at + 2);
            }
            element.classList.toggle('current', at === current);
            setName(row.name, s ? COLUMNS[0][2](s) : s === null ? 'deleted' : '…');
            COLUMNS.forEach(([key, , text], c) => {
                if (c && text) setText(row.cells[c], s ? `${text(s)}${NARROW.matches ? CARD[key] ?? '' : ''}` : '');
            });
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
        COLUMNS.forEach(([name], i) => setAttribute(heads[i], 'aria-sort', name === sort ? (order === 'up' ? 'ascending' : 'descending') : null));
        choice.value = `${sort} ${order}`;
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
        const screen = Math.max(1, Math.floor(view.clientHeight / rowHeight()) - 1);
        const to = {ArrowDown: current + 1, ArrowUp: current - 1, PageDown: current + screen, PageUp: current - screen, Home: 0, End: total - 1}[event.key];
        if (event.target !== grid) return; // a heading's button
        if (event.key === 'Enter') go(current);
        if (to === undefined || !total) return;
        event.preventDefault();
        current = Math.max(0, Math.min(total - 1, to));
        const tall = rowHeight(), top = current * tall;
        if (top < view.scrollTop) view.scrollTop = top;
        else if (top + tall > view.scrollTop + view.clientHeight) view.scrollTop = top + tall - view.clientHeight;
        draw();
    }
    headings();
    NARROW.addEventListener('change', draw);
    const polling = poll(refresh, POLL_MS);
    return {now: polling.now, same: () => true, stop() {
        polling.stop();
        NARROW.removeEventListener('change', draw);
    }};
}
