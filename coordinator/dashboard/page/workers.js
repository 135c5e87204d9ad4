// SPDX-License-Identifier: Apache-2.0
// The table of workers. Rows are kept and only what has changed is written: 256 of them cost a few milliseconds.
import {badge, h, setAttribute, setName, setText} from './dom.js';
import {bandwidth, bytes, count, duration, rate, short} from './format.js';

// What people should see of its state: [kind, word].
export function stateOf(worker) {
    if (worker.state === 'active' && worker.cordoned && !worker.draining) return ['info', 'cordoned'];
    if (worker.state === 'active' && worker.draining) return ['info', worker.chunks ? 'draining' : 'drained'];
    if (worker.state === 'active' && worker.slow) return ['warn', 'slow'];
    return {active: ['ok', 'active'], joining: ['info', 'joining'], suspect: ['warn', 'suspect'], lost: ['bad', 'lost']}[worker.state] || ['off', worker.state];
}
export const workerAddress = (name) => `#/workers/${encodeURIComponent(name)}`;
const RANKS = {bad: 0, warn: 1, info: 2, off: 3, ok: 4};

const COLUMNS = [
    {key: 'name', title: 'Worker', of: (w) => w.name},
    {key: 'state', title: 'State', of: (w) => RANKS[stateOf(w)[0]]},
    {key: 'host', title: 'Host', of: (w) => w.host},
    {key: 'used', title: 'Memory', of: (w) => w.used_bytes / (w.capacity_bytes || 1), num: true},
    {key: 'tokens', title: 'Tokens', of: (w) => w.tokens, num: true},
    {key: 'chunks', title: 'Chunks', of: (w) => w.chunks, num: true},
    {key: 'sessions', title: 'Sessions', of: (w) => w.sessions, num: true},
    {key: 'steps', title: 'Steps', of: (w) => w.rate, num: true},
    {key: 'compute', title: 'Last compute', of: (w) => w.last_compute_ns, num: true},
    {key: 'speed', title: 'Planned / measured speed', of: (w) => w.planned_bandwidth, num: true},
    {key: 'beat', title: 'Heartbeat', of: (w) => w.heartbeat_age_ns, num: true},
    {key: 'kernel', title: 'Kernel', of: (w) => w.kernel},
];

const AT_ONCE = 40; // new rows of one frame
const ROW = 32;     // pixels; style.css says so, too
const LETTERS = {least: 8, host: 24, name: 24, each: 7.2, others: 1040}; // of the columns of names; each, others: pixels of style.css
const UNSEEN = 24;  // rows out of view that are written with each answer, in turn

export function workers(parent, page) {
    let sort = COLUMNS[0], down = false, turn = 0, room = 0, shown = [], before = new Map(), beforeNs = 0;
    const rows = new Map(), body = h('tbody');
    const heads = COLUMNS.map((column) => h('th', {scope: 'col', class: column.num ? 'num' : null},
        h('button', {type: 'button', onclick: () => {
            down = sort === column ? !down : Boolean(column.num);
            sort = column;
            order();
        }}, column.title)));
    const said = h('span', {class: 'muted small', role: 'status'});
    const filter = h('input', {type: 'search', placeholder: 'Name, host or state', 'aria-label': 'Filter workers', oninput: order});
    const empty = h('p', {class: 'empty', hidden: true}, 'No workers yet. Start one with: banyan-worker --coordinator ENDPOINT');
    const table = h('table', {class: 'fixed'}, h('caption', {class: 'hidden-text'}, 'Workers, their memory and their speed'), h('thead', {}, h('tr', {}, heads)), body);
    const scroll = h('div', {class: 'scroll', tabindex: '0', role: 'region', 'aria-label': 'Table of workers', onscroll: () => requestAnimationFrame(writeSeen)},
        table, empty);
    parent.append(h('section', {class: 'panel', 'aria-labelledby': 'workers-title'},
        h('header', {}, h('h2', {id: 'workers-title'}, 'Workers'), said, h('span', {class: 'grow'}), filter),
        scroll));

    function make() {
        const row = {cells: COLUMNS.map((column) => h('td', {class: column.num ? 'num' : null}))};
        row.element = h('tr', {}, row.cells);
        row.used = h('i');
        row.cold = h('i', {class: 'cold'});
        row.reserved = h('i', {class: 'reserved'});
        row.bar = h('span', {class: 'bar', 'aria-hidden': 'true'}, row.reserved, row.used, row.cold);
        row.memory = h('span');
        row.name = h('a', {});
        row.host = h('span');
        row.cells[0].append(row.name);
        row.cells[2].append(row.host);
        row.cells[3].append(h('span', {class: 'cell-bar'}, row.memory, row.bar));
        return row;
    }

    function write(row, w) {
        const [kind, word] = stateOf(w), texts = [null, null, null, null, count(w.tokens), count(w.chunks), count(w.sessions),
            rate(w.rate), duration(w.last_compute_ns), `${bandwidth(w.planned_bandwidth)} / ${bandwidth(w.seen_bandwidth)}`,
            w.state === 'lost' ? '–' : duration(w.heartbeat_age_ns), w.engine === 'stream' ? w.kernel : `${w.kernel}, ${w.engine}`];
        texts.forEach((text, i) => text !== null && setText(row.cells[i], text));
        setName(row.name, w.name);
        setAttribute(row.name, 'href', workerAddress(w.name));
        setName(row.host, w.host);
        if (row.word !== word || row.why !== w.drain_reason) {
            row.cells[1].replaceChildren(badge(kind, word, w.drain_reason || null));
            row.word = word;
            row.why = w.drain_reason;
        }
        const share = (n) => `${Math.min(100, 100 * n / (w.capacity_bytes || 1)).toFixed(1)}%`;
        setText(row.memory, `${bytes(w.used_bytes)} of ${bytes(w.capacity_bytes)}`);
        if (row.width !== share(w.used_bytes)) row.used.style.width = row.width = share(w.used_bytes);
        if (row.coldWidth !== share(w.cold_bytes)) row.cold.style.width = row.coldWidth = share(w.cold_bytes);
        const taken = w.used_bytes + w.reserved_bytes;
        if (row.reservedWidth !== share(taken)) row.reserved.style.width = row.reservedWidth = share(taken);
        setAttribute(row.bar, 'class', taken > 0.95 * w.capacity_bytes ? 'bar full' : 'bar');
        setAttribute(row.cells[3], 'title', `${bytes(w.reserved_bytes)} reserved, ${bytes(Math.max(0, w.capacity_bytes - taken))} free${w.cold_bytes ? `; ${bytes(w.cold_bytes)} on disk only` : ''}`);
        setAttribute(row.cells[11], 'title', w.no_device ? `Computes on the CPU: ${w.no_device}` : null);
    }

    // Who is in view is right at once: layout of 256 rows with each answer would take longer than a frame.
    function writeSeen() {
        const from = Math.max(0, Math.floor(scroll.scrollTop / ROW) - 2);
        for (const w of shown.slice(from, from + Math.ceil(scroll.clientHeight / ROW) + 4)) if (rows.has(w.name)) write(rows.get(w.name), w);
    }

    // The columns of names as wide as the longest name, where there is room beside the others.
    function widen() {
        const longest = (of, most) => Math.min(most, Math.max(LETTERS.least, ...page.workers.map((w) => of(w).length)));
        room ||= scroll.clientWidth; // asked for with each answer it would cost a layout
        const host = longest((w) => w.host, LETTERS.host), letters = `${longest((w) => w.name, Math.max(LETTERS.name, Math.floor((room - LETTERS.others) / LETTERS.each) - host))} ${host}`;
        if (table.dataset.letters === letters) return;
        table.dataset.letters = letters;
        ['--name', '--host'].forEach((name, i) => table.style.setProperty(name, letters.split(' ')[i]));
    }

    function order() {
        const wanted = filter.value.trim().toLowerCase();
        shown = page.workers.filter((w) => !wanted || `${w.name} ${w.host} ${stateOf(w)[1]}`.toLowerCase().includes(wanted));
        shown.sort((a, b) => {
            const x = sort.of(a), y = sort.of(b);
            const by = typeof x === 'string' ? x.localeCompare(y, 'en', {numeric: true}) : x - y;
            return (down ? -by : by) || (a.name < b.name ? -1 : 1);
        });
        COLUMNS.forEach((column, i) => setAttribute(heads[i], 'aria-sort', column === sort ? (down ? 'descending' : 'ascending') : null));
        let fresh = 0;
        const elements = [];
        for (const w of shown) {
            if (!rows.has(w.name)) {
                if (++fresh > AT_ONCE) break; // the rest comes with the next frames
                rows.set(w.name, make());
                write(rows.get(w.name), w);
            }
            elements.push(rows.get(w.name).element);
        }
        if (elements.length !== body.children.length || elements.some((element, i) => body.children[i] !== element)) body.replaceChildren(...elements);
        if (fresh > AT_ONCE) requestAnimationFrame(order);
        setText(said, wanted ? `${shown.length} of ${page.workers.length}` : `${page.workers.length}`);
    }

    function update() {
        const c = page.cluster;
        if (!c) return; // nothing has been answered yet
        const now = c.now_ns, seconds = (now - beforeNs) / 1e9, steps = new Map();
        for (const w of page.workers) {
            const last = before.get(w.name);
            w.rate = last !== undefined && seconds > 0 && w.steps >= last ? (w.steps - last) / seconds : 0;
            steps.set(w.name, w.steps);
        }
        for (const name of rows.keys()) if (!steps.has(name)) rows.delete(name);
        if (now !== beforeNs) {
            before = steps;
            beforeNs = now;
        }
        empty.hidden = page.workers.length > 0;
        table.hidden = !page.workers.length;
        widen();
        order();
        writeSeen();
        for (let i = 0; i < Math.min(UNSEEN, shown.length); i++) {
            const w = shown[turn++ % shown.length];
            if (rows.has(w.name)) write(rows.get(w.name), w);
        }
    }
    function resized() {
        room = 0;
    }
    window.addEventListener('redraw', resized);
    return {update, stop: () => window.removeEventListener('redraw', resized)};
}
