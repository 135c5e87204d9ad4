// SPDX-License-Identifier: Apache-2.0
// Where steps looked: a row a layer, a column a stretch of the context. Halving the mass is an eighth of the scale, which
// ends at 1/256 of the largest cell: sparse attention stays readable.
import {canvas, color, h, setText} from './dom.js';
import {count, percent, ticks} from './format.js';

const LEFT = 58, AXIS = 20, GAP = 8, DEPTH = 8;

function parse(text) {
    return text.match(/[\d.]+/g).slice(0, 3).map(Number);
}
function ramp() {
    const stops = [0, 1, 2, 3, 4].map((i) => parse(color(`heat-${i}`)));
    return Array.from({length: 65}, (_, i) => {
        const at = i / 16, low = Math.min(3, Math.floor(at)), t = at - low;
        return `rgb(${stops[low].map((c, k) => Math.round(c + (stops[low + 1][k] - c) * t)).join(' ')})`;
    });
}
const level = (mass, most) => (mass > 0 && most > 0 ? Math.max(0, 1 + Math.log2(mass / most) / DEPTH) : 0);

// Of each layer the newest step, lowest layer first; of the newest layout alone, so that columns are the same stretches.
function rowsOf(steps) {
    const good = steps.filter((s) => s.bins.length), newest = good[good.length - 1], byLayer = new Map();
    for (const s of good) if (s.bin_tokens === newest.bin_tokens && s.bins.length === newest.bins.length) byLayer.set(s.layer, s);
    return [...byLayer.values()].sort((a, b) => a.layer - b.layer);
}

export function heat(parent) {
    const element = h('canvas', {'aria-hidden': 'true'}), said = h('output', {class: 'said', 'aria-live': 'polite'});
    const box = h('div', {class: 'draw', hidden: true, tabindex: '0', role: 'group', 'aria-roledescription': 'heat map', 'aria-label': 'Attention mass over the context, one row per layer; read cells with the arrow keys', onkeydown: key, onpointermove: point, onpointerleave: () => at(null)}, element);
    const most = h('span'), least = h('span'), even = h('span');
    const scale = h('div', {class: 'scale', hidden: true}, least, h('span', {class: 'ramp', 'aria-hidden': 'true'}), most, even);
    const table = h('tbody');
    const other = h('details', {hidden: true}, h('summary', {}, 'Table: highest attention of each layer'), h('div', {class: 'scroll'}, h('table', {}, h('thead', {}, h('tr', {}, ['Layer', 'Step', 'Highest', 'Second', 'Third', 'Sink'].map((t) => h('th', {scope: 'col'}, t)))), table)));
    parent.append(scale, box, said, other);
    let rows = [], mean = [], largest = 0, cell = null, geometry = null;

    function draw() {
        if (!rows.length) return;
        const height = Math.max(9, Math.min(22, Math.floor(360 / rows.length))), bins = mean.length;
        const {context: g, width} = canvas(element, height + 6 + GAP + rows.length * height + AXIS);
        const colors = ramp(), wide = (width - LEFT - 12) / bins, gap = wide > 5 && height > 10 ? 1 : 0;
        const last = rows[rows.length - 1], end = last.visible;
        g.font = '11px ' + getComputedStyle(document.body).fontFamily;
        g.textBaseline = 'middle';
        const line = (values, top, tall, label, top_) => {
            g.fillStyle = color('muted');
            g.textAlign = 'right';
            if (label) g.fillText(label, LEFT - 8, top + tall / 2);
            values.forEach((mass, b) => {
                g.fillStyle = colors[Math.round(64 * level(mass, top_))];
                g.fillRect(LEFT + b * wide, top, Math.max(1, wide - gap) + (gap ? 0 : 0.5), tall - gap);
            });
        };
        line(mean, 0, height + 6, 'mean', largest);
        const every = Math.ceil(12 / height);
        rows.forEach((row, i) => line(row.bins, height + 6 + GAP + i * height, height, i % every ? '' : `layer ${row.layer}`, largest));
        const bottom = height + 6 + GAP + rows.length * height, span = bins * last.bin_tokens;
        g.fillStyle = color('muted');
        g.textAlign = 'center';
        for (const t of ticks(end, Math.max(2, width / 130))) {
            const x = LEFT + (t / span) * wide * bins;
            g.fillRect(x, bottom, 1, 4);
            g.textAlign = t ? 'center' : 'left';
            if (x < width - 20) g.fillText(count(t), x, bottom + 13);
        }
        geometry = {height, wide, bins};
        if (cell) {
            g.strokeStyle = color('text');
            g.lineWidth = 1.5;
            const top = cell.row < 0 ? 0 : height + 6 + GAP + cell.row * height;
            g.strokeRect(LEFT + cell.bin * wide - 0.5, top - 0.5, wide + 1, (cell.row < 0 ? height + 6 : height) + 1);
        }
    }
    function at(next) {
        cell = next;
        if (cell) {
            const row = rows[cell.row], mass = row ? row.bins[cell.bin] : mean[cell.bin], tokens = rows[rows.length - 1].bin_tokens, from = cell.bin * tokens;
            setText(said, `${row ? `Layer ${row.layer}, step ${count(row.step)}` : 'Mean of the layers'}: tokens ${count(from)} to ${count(Math.min(from + tokens, rows[rows.length - 1].visible) - 1)}, ${percent(mass)} of the attention; an even share is ${percent(1 / mean.length)}`);
        } else {
            setText(said, '');
        }
        draw();
    }
    function point(event) {
        if (!geometry || !rows.length) return;
        const {left, top} = element.getBoundingClientRect(), bin = Math.floor((event.clientX - left - LEFT) / geometry.wide), y = event.clientY - top;
        const row = y < geometry.height + 6 ? -1 : Math.floor((y - geometry.height - 6 - GAP) / geometry.height);
        if (bin >= 0 && bin < geometry.bins && row < rows.length) at({row: Math.max(-1, row), bin});
    }
    function key(event) {
        const move = {ArrowRight: [0, 1], ArrowLeft: [0, -1], ArrowDown: [1, 0], ArrowUp: [-1, 0]}[event.key];
        if (!move || !rows.length) return;
        event.preventDefault();
        const from = cell || {row: -1, bin: -1 + (move[1] < 0)};
        at({row: Math.max(-1, Math.min(rows.length - 1, from.row + move[0])), bin: Math.max(0, Math.min(mean.length - 1, from.bin + move[1]))});
    }
    function update(steps) {
        rows = steps.some((s) => s.bins.length) ? rowsOf(steps) : [];
        box.hidden = scale.hidden = other.hidden = !rows.length;
        if (!rows.length) return false;
        mean = rows[0].bins.map((_, b) => rows.reduce((sum, row) => sum + row.bins[b], 0) / rows.length);
        largest = Math.max(...rows.map((row) => Math.max(...row.bins)));
        setText(most, percent(largest));
        setText(least, `below ${percent(largest / 2 ** DEPTH)}`);
        setText(even, `an even share is ${percent(1 / mean.length)}; one cell is ${count(rows[0].bin_tokens)} tokens`);
        const end = rows[rows.length - 1].visible;
        table.replaceChildren(...rows.map((row) => {
            const best = row.bins.map((mass, b) => [mass, b]).sort((a, b) => b[0] - a[0]).slice(0, 3);
            return h('tr', {}, h('td', {}, count(row.layer)), h('td', {}, count(row.step)), ...[0, 1, 2].map((i) => h('td', {}, best[i] ? `${count(best[i][1] * row.bin_tokens)}–${count(Math.min(end, (best[i][1] + 1) * row.bin_tokens) - 1)}: ${percent(best[i][0])}` : '')), h('td', {}, row.sink ? percent(row.sink) : '–'));
        }));
        if (cell && (cell.row >= rows.length || cell.bin >= mean.length)) cell = null;
        draw();
        return true;
    }
    return {update, draw};
}
