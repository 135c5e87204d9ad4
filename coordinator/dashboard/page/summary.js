// SPDX-License-Identifier: Apache-2.0
// The strip above all views. Rates are differences of the coordinator's counters between two answers.
import {h, setAttribute, setText, svg} from './dom.js';
import {bytes, count, duration, quantile, rate, short} from './format.js';
import {inLastHour, samplesOf} from './history.js';

const KEPT = 90; // samples of a line

function tile(parent, title) {
    const value = h('div', {class: 'value'}, '–'), note = h('div', {class: 'note'}, ' ');
    const box = h('div', {class: 'tile'}, h('h2', {}, title), value, note);
    parent.append(box);
    return {box, set: (v, n, kind) => {
        setText(value, v);
        setText(note, n);
        setAttribute(value, 'class', kind ? `value state-${kind}` : 'value');
        setAttribute(box, 'class', kind ? 'tile marked' : 'tile');
        setAttribute(note, 'title', n);
    }};
}

// A line of the last samples; numbers say the same beside it.
function line(box) {
    const path = svg('path', {fill: 'none', stroke: 'currentColor', 'stroke-width': 1.5, 'vector-effect': 'non-scaling-stroke'});
    const area = svg('path', {fill: 'currentColor', opacity: 0.12});
    box.append(svg('svg', {viewBox: `0 0 ${KEPT} 20`, preserveAspectRatio: 'none', 'aria-hidden': 'true'}, area, path));
    const samples = [];
    return (sample) => {
        samples.push(sample);
        if (samples.length > KEPT) samples.shift();
        const most = Math.max(...samples, 1e-9);
        if (samples.length < 3) return;
        const points = samples.map((s, i) => `${(KEPT * i / (samples.length - 1)).toFixed(1)},${(19 - 17 * s / most).toFixed(2)}`);
        path.setAttribute('d', `M${points.join('L')}`);
        area.setAttribute('d', `M0,20L${points.join('L')}L${KEPT},20Z`);
    };
}

export function summary(parent) {
    const workers = tile(parent, 'Workers'), sessions = tile(parent, 'Sessions'), memory = tile(parent, 'KV memory'),
        steps = tile(parent, 'Steps'), took = tile(parent, 'Median step'), copies = tile(parent, 'Missing copies'), wrong = tile(parent, 'Errors');
    const stepsLine = line(steps.box);
    let before = null;

    function update(page) {
        const c = page.cluster, list = page.workers;
        const active = list.filter((w) => w.state === 'active').length, hosts = new Set(list.map((w) => w.host)).size;
        workers.set(`${active} of ${list.length}`, `active, on ${hosts} ${hosts === 1 ? 'host' : 'hosts'}`, active < list.length ? 'warn' : null);
        const bad = c.session_states.lost + c.session_states.unavailable;
        sessions.set(count(c.sessions), bad ? `${count(bad)} unavailable` : c.session_states.degraded ? `${count(c.session_states.degraded)} degraded` : `${short(list.reduce((n, w) => n + w.tokens, 0))} tokens held`,
            bad ? 'bad' : null);
        const used = list.reduce((n, w) => n + w.used_bytes, 0), room = list.reduce((n, w) => n + w.capacity_bytes, 0);
        memory.set(bytes(used), room ? `${(100 * used / room).toFixed(1)} % of ${bytes(room)}` : 'no worker', room && used > 0.9 * room ? 'warn' : null);
        copies.set(count(c.thin_chunks), c.moves || c.wished_chunks ? `${count(c.moves + c.wished_chunks)} chunks moving` : 'no chunks moving', c.thin_chunks ? 'warn' : null);
        if (page.history) errors(c, page.history);
        if (before && before.term === c.term && c.now_ns > before.now_ns) rates(c, (c.now_ns - before.now_ns) / 1e9);
        before = c;
    }

    function rates(c, seconds) {
        const per = (name) => (c.counters[name] - before.counters[name]) / seconds;
        const now = per('steps'), counts = c.took.counts.map((n, i) => n - before.took.counts[i]);
        steps.set(rate(now), `${count(c.items)} in progress`);
        stepsLine(now);
        const p50 = quantile(counts, c.took.first_ns, 0.5), all = p50 === null ? c.took.counts : counts;
        took.set(duration(quantile(all, c.took.first_ns, 0.5)), `99 % below ${duration(quantile(all, c.took.first_ns, 0.99))}`);
    }

    // Failed steps of the last hour: those of its samples, and those since the newest one. One number, so that nothing
    // contradicts it; red while it grows.
    function errors(c, past) {
        const samples = samplesOf(past), sum = (name) => inLastHour(samples, name) + Math.max(0, c.counters[name] - past.counters[name]);
        const failures = sum('failures'), retries = sum('retries'), growing = before?.term === c.term && c.counters.failures > before.counters.failures;
        wrong.set(count(failures), `last hour${retries ? `; ${short(retries)} retried` : ''}`, growing ? 'bad' : failures ? 'warn' : null);
    }
    return {update};
}
