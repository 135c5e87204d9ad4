// SPDX-License-Identifier: Apache-2.0
// One worker: what it is, its memory, its limits, and its events. Limits and events are asked for here; the rest comes with
// the list of workers.
import {poll} from './api.js';
import {h, setBadge, setText} from './dom.js';
import {events} from './events.js';
import {bandwidth, bytes, count, duration, percent, rate} from './format.js';
import {stateOf} from './workers.js';

const POLL_MS = 3000;
const PARTS = [['used', 'used', (w) => w.used_bytes], ['reserved', 'reserved', (w) => w.reserved_bytes], ['free', 'free', (w) => Math.max(0, w.capacity_bytes - w.used_bytes - w.reserved_bytes)]];

// Of a limit's name: requests_of_a_client, unread_bytes.
const words = (name) => (name[0].toUpperCase() + name.slice(1).replaceAll('_', ' ')).replace(/^Kv/, 'KV'), amount = (name) => (/bytes/.test(name) ? bytes : count);

export function open(main, page, encoded) {
    let name = encoded;
    try {
        name = decodeURIComponent(encoded);
    } catch { /* as it is written */ }
    const state = h('span', {class: 'badge'}), why = h('span', {class: 'muted small'}), gone = h('p', {class: 'trouble', role: 'status', hidden: true});
    const facts = h('dl', {class: 'facts'}), memory = h('dl', {class: 'facts'}), bar = h('div', {class: 'steps', 'aria-hidden': 'true'}, PARTS.map(([kind]) => h('i', {class: kind}))), limits = h('dl', {class: 'facts'});
    const panel = (id, title, ...children) => h('section', {class: 'panel', 'aria-labelledby': id}, h('header', {}, h('h2', {id}, title)), h('div', {class: 'body'}, ...children));
    const limited = panel('limits-title', 'Limits', limits), panels = [panel('facts-title', 'Facts', facts), panel('memory-title', 'KV memory', h('div', {class: 'key'}, PARTS.map(([kind, title]) => h('span', {}, h('i', {class: `swatch ${kind}`}), title))), bar, memory), limited], below = h('div');
    main.append(h('div', {class: 'crumbs'}, h('a', {href: '#/'}, 'Cluster'), h('span', {class: 'muted', 'aria-hidden': 'true'}, '/'), h('h1', {}, name), state, why), gone, ...panels, below);
    limited.hidden = true;
    document.title = `${name} · Banyan`;
    const told = events(below, page, {tall: false, worker: name});
    let before = null;

    function write(list, pairs) {
        if (list.children.length !== pairs.length) list.replaceChildren(...pairs.map(() => h('div', {}, h('dt'), h('dd'))));
        pairs.forEach(([title, text], i) => {
            setText(list.children[i].firstChild, title);
            setText(list.children[i].lastChild, text);
        });
    }
    function update() {
        if (!page.cluster) return; // nothing has been answered yet
        const w = page.workers.find((one) => one.name === name), now = page.cluster.now_ns;
        gone.hidden = Boolean(w);
        panels[0].hidden = panels[1].hidden = !w;
        if (!w) limited.hidden = true;
        state.hidden = !w;
        if (!w) return setText(gone, 'There is no worker with this name.');
        const [kind, word] = stateOf(w);
        setBadge(state, kind, word);
        setText(why, w.drain_reason || '');
        if (!before || now !== before.now) before = {now, steps: w.steps, rate: before && w.steps >= before.steps && now > before.now ? (w.steps - before.steps) / ((now - before.now) / 1e9) : null};
        write(facts, [['Host', w.host], ['Endpoint', w.endpoint], ['Version', w.version], ['Kernel', `${w.kernel}${w.no_device ? ` (computes on the CPU: ${w.no_device})` : ''}`], ['Engine', w.engine], ['Threads', count(w.threads)],
            ['Sessions', count(w.sessions)], ['Tokens', count(w.tokens)], ['Chunks', count(w.chunks)], ['Steps', before.rate === null ? count(w.steps) : `${rate(before.rate)}, ${count(w.steps)} so far`], ['Last compute', duration(w.last_compute_ns)],
            ['Planned speed', bandwidth(w.planned_bandwidth)], ['Measured speed', bandwidth(w.seen_bandwidth)], ['Pace', w.pace ? `${percent(w.pace)} of planned speed` : '–'], ['Chunks moving', count(w.moves)], ['Heartbeat', w.state === 'lost' ? '–' : `${duration(w.heartbeat_age_ns)} ago`]]);
        PARTS.forEach(([, , of], i) => (bar.children[i].style.width = `${(100 * of(w) / (w.capacity_bytes || 1)).toFixed(2)}%`));
        write(memory, [['Capacity', bytes(w.capacity_bytes)], ...PARTS.map(([, title, of]) => [title[0].toUpperCase() + title.slice(1), bytes(of(w))]), ['On disk only', bytes(w.cold_bytes)], ['Store files', bytes(w.store_bytes)],
            ['Quarantined', w.quarantined_sessions ? `${bytes(w.quarantined_bytes)} of ${count(w.quarantined_sessions)} ${w.quarantined_sessions === 1 ? 'session' : 'sessions'}` : 'none']]);
    }
    const polling = poll(async () => {
        const own = (await page.ask('workers', {name})).workers[0].limits;
        limited.hidden = !own.length;
        write(limits, own.map((limit) => [words(limit.name), `${amount(limit.name)(limit.used)} of ${amount(limit.name)(limit.max)}${limit.refused ? `, ${count(limit.refused)} refused` : ''}`]));
    }, POLL_MS);
    return {update, same: (other) => other === encoded, now() {
        told.now();
        polling.now();
    }, stop() {
        told.stop();
        polling.stop();
    }};
}
