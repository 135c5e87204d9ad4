// SPDX-License-Identifier: Apache-2.0
// The last hour: what the coordinator has kept of it, a sample each half a minute (coordinator/dashboard/history.h).
import {h, setAttribute, setText, svg} from './dom.js';
import {bytes, count, duration, rate} from './format.js';

const WIDE = 240, HIGH = 44;

// Columns of /api/v1/history as samples, the oldest first.
export function samplesOf(answer) {
    const {series} = answer;
    return series.at_ns.map((at, i) => Object.fromEntries([...Object.entries(series).map(([name, values]) => [name, values[i]]), ['ago_ns', answer.now_ns - at]]));
}

// How many of these there were in all samples.
export function inLastHour(samples, name) {
    return samples.reduce((sum, sample) => sum + sample[name], 0);
}

const CHARTS = [
    {title: 'Steps', of: (s) => (s.span_ns ? s.steps / (s.span_ns / 1e9) : 0), text: rate},
    {title: 'Median step', of: (s) => s.p50_ns, text: duration},
    {title: '99th percentile', of: (s) => s.p99_ns, text: duration},
    {title: 'Failed steps', of: (s) => s.failures, text: count},
    {title: 'KV memory', of: (s) => s.used_bytes, text: bytes, most: (s) => s.capacity_bytes},
    {title: 'Active workers', of: (s) => s.active, text: count, most: (s) => s.workers},
];

function chart(parent, {title, of, text, most}) {
    const line = svg('path', {fill: 'none', stroke: 'currentColor', 'stroke-width': 1.5, 'vector-effect': 'non-scaling-stroke'}), area = svg('path', {fill: 'currentColor', opacity: 0.12});
    const range = h('span', {class: 'muted small'}), drawing = svg('svg', {viewBox: `0 0 ${WIDE} ${HIGH}`, preserveAspectRatio: 'none', role: 'img', 'aria-label': title}, area, line);
    parent.append(h('div', {class: 'chart'}, h('h3', {}, title), range, drawing));
    return (samples, span) => {
        const known = samples.filter((s) => of(s) !== null), values = known.map(of);
        const low = Math.min(...values), high = Math.max(...values), top = Math.max(high, most ? Math.max(...known.map(most)) : 0) || 1;
        const words = !values.length ? 'none' : text(low) === text(high) ? text(high) : `${text(low)} to ${text(high)}`;
        setText(range, words);
        setAttribute(drawing, 'aria-label', `${title} in the last hour: ${words}`);
        const points = known.map((s) => `${(WIDE * (1 - s.ago_ns / span)).toFixed(1)},${(HIGH - 1 - (HIGH - 4) * of(s) / top).toFixed(1)}`);
        setAttribute(line, 'd', points.length ? `M${points.join('L')}` : '');
        setAttribute(area, 'd', points.length ? `M${points[0].split(',')[0]},${HIGH}L${points.join('L')}L${points[points.length - 1].split(',')[0]},${HIGH}Z` : '');
    };
}

export function lastHour(parent, page) {
    const charts = h('div', {class: 'charts'}), body = h('tbody'), empty = h('p', {class: 'empty'}), note = h('span', {class: 'muted small'});
    const draws = CHARTS.map((one) => chart(charts, one));
    const table = h('details', {}, h('summary', {}, 'Table'), h('div', {class: 'scroll', tabindex: '0', role: 'region', 'aria-label': 'Samples of the last hour'}, h('table', {}, h('caption', {class: 'hidden-text'}, 'The last hour, newest first'),
        h('thead', {}, h('tr', {}, ['Time', ...CHARTS.map(({title}) => title)].map((t, i) => h('th', {scope: 'col', class: i ? 'num' : null}, t)))), body)));
    parent.append(h('section', {class: 'panel', 'aria-labelledby': 'hour-title'}, h('header', {}, h('h2', {id: 'hour-title'}, 'Last hour'), note), h('div', {class: 'body'}, charts, table, empty)));
    let drawn = null;
    return {update() {
        if (!page.history || page.history === drawn) return;
        drawn = page.history;
        const samples = samplesOf(drawn), enough = samples.length > 1;
        charts.hidden = table.hidden = !enough;
        empty.hidden = enough;
        setText(empty, `The coordinator takes a sample every ${count(drawn.every_ns / 1e9)} s. The charts start with the second one.`);
        setText(note, enough ? `${count(samples.length)} samples, one every ${count(drawn.every_ns / 1e9)} s` : '');
        if (!enough) return;
        for (const draw of draws) draw(samples, drawn.every_ns * drawn.most);
        const rows = [...samples].reverse().filter((_, i) => i % 10 === 0); // one in five minutes
        body.replaceChildren(...rows.map((s) => h('tr', {}, h('td', {}, new Date(Date.now() - s.ago_ns / 1e6).toLocaleTimeString('en-GB')), ...CHARTS.map(({of, text}) => h('td', {class: 'num'}, of(s) === null ? '–' : text(of(s)))))));
    }};
}
