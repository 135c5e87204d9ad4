// SPDX-License-Identifier: Apache-2.0
// Numbers with their units.

const WHOLE = new Intl.NumberFormat('en');
export const count = (n) => WHOLE.format(n);

// Three digits that count.
function digits(x) {
    return x >= 100 || x === 0 ? x.toFixed(0) : x >= 10 ? x.toFixed(1) : x.toFixed(2);
}

function scaled(n, step, units) {
    let i = 0;
    while (n >= step * 0.9995 && i + 1 < units.length) {
        n /= step;
        i++;
    }
    return `${i === 0 && Number.isInteger(n) ? n : digits(n)}${units[i]}`;
}

export const bytes = (n) => scaled(n, 1024, [' B', ' KiB', ' MiB', ' GiB', ' TiB', ' PiB']);
export const bandwidth = (n) => (n ? `${scaled(n, 1000, [' B', ' kB', ' MB', ' GB', ' TB'])}/s` : '–');
export const short = (n) => scaled(n, 1000, ['', ' k', ' M', ' G', ' T']);
export const rate = (n) => `${n < 10 ? n.toFixed(n ? 1 : 0) : short(Math.round(n))}/s`;
export const percent = (x) => `${x >= 0.1 ? (100 * x).toFixed(1) : (100 * x).toPrecision(2)} %`;

// At most so many letters, cut in the middle: names of one cluster mostly differ at their end.
export function middle(text, most) {
    const letters = [...text], kept = Math.max(2, most) - 1, head = Math.ceil(kept * 0.4);
    return letters.length <= most ? text : `${letters.slice(0, head).join('')}…${letters.slice(letters.length - (kept - head)).join('')}`;
}

export function duration(ns) {
    if (ns === null || ns === undefined) return '–';
    if (ns < 1e3) return `${Math.round(ns)} ns`;
    if (ns < 1e6) return `${digits(ns / 1e3)} µs`;
    if (ns < 1e9) return `${digits(ns / 1e6)} ms`;
    const s = ns / 1e9;
    if (s < 60) return `${digits(s)} s`;
    if (s < 3600) return `${Math.floor(s / 60)} min ${Math.floor(s % 60)} s`;
    if (s < 86400) return `${Math.floor(s / 3600)} h ${Math.floor((s % 3600) / 60)} min`;
    return `${Math.floor(s / 86400)} d ${Math.floor((s % 86400) / 3600)} h`;
}

// The time below which the share of these answers lies, interpolated in its bucket (common/metrics/buckets.h). null: there are none.
export function quantile(counts, firstNs, share) {
    const all = counts.reduce((sum, n) => sum + n, 0);
    let left = share * all;
    for (let i = 0; i < counts.length && all; i++) {
        const low = i ? firstNs * 2 ** (i - 1) : 0, high = firstNs * 2 ** i;
        if (left <= counts[i]) return low + (high - low) * (left / counts[i]);
        left -= counts[i];
    }
    return null;
}

// Round steps for an axis from 0 to `most`, about `wanted` of them.
export function ticks(most, wanted) {
    if (!(most > 0)) return [0];
    const rough = most / wanted, power = 10 ** Math.floor(Math.log10(rough));
    const step = Math.max(1, [1, 2, 5, 10].map((m) => m * power).find((s) => s >= rough));
    const out = [];
    for (let at = 0; at <= most; at += step) out.push(at);
    return out;
}
