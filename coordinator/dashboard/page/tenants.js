// SPDX-License-Identifier: Apache-2.0
// The tenants, what each has in use, and what it may have.
import {poll} from './api.js';
import {h, setName, setText} from './dom.js';
import {bytes, count, short} from './format.js';

const POLL_MS = 3000, LIMIT = 256;
const COLUMNS = [['sessions', 'Sessions', count], ['bytes', 'KV memory', bytes], ['steps_per_s', 'Steps per second', short], ['steps_in_flight', 'Steps in flight', count], ['connections', 'Connections', count], ['watches', 'Watches', count]];

export function open(main, page) {
    const body = h('tbody'), said = h('span', {class: 'muted small', role: 'status'}), empty = h('p', {class: 'empty', hidden: true}, 'No matching tenants.');
    const filter = h('input', {type: 'search', placeholder: 'Name', 'aria-label': 'Filter tenants by name', maxlength: 60});
    main.append(h('h1', {class: 'hidden-text'}, 'Tenants'), h('section', {class: 'panel', 'aria-labelledby': 'tenants-title'}, h('header', {}, h('h2', {id: 'tenants-title'}, 'Tenants'), said, h('span', {class: 'grow'}), filter),
        h('div', {class: 'scroll tall', tabindex: '0', role: 'region', 'aria-label': 'Table of tenants'}, h('table', {class: 'cards'}, h('caption', {class: 'hidden-text'}, 'Tenants: what each uses of its quotas'),
            h('thead', {}, h('tr', {}, h('th', {scope: 'col'}, 'Tenant'), COLUMNS.map(([, title]) => h('th', {scope: 'col', class: 'num'}, title)), h('th', {scope: 'col', class: 'num'}, 'Steps so far'), h('th', {scope: 'col', class: 'num'}, 'Refused'))), body), empty)));

    function cell(title, text, {used, max}) {
        const share = max ? Math.min(1, used / max) : 0, bar = h('i');
        bar.style.width = `${(100 * share).toFixed(1)}%`;
        return h('td', {class: 'num', 'data-title': title}, `${text(used)}${max ? ` of ${text(max)}` : ''}`, max ? h('span', {class: share > 0.95 ? 'bar full' : 'bar', 'aria-hidden': 'true'}, bar) : null);
    }
    function row(tenant) {
        const name = h('td');
        name.append(setName(h('span'), tenant.name));
        const refused = COLUMNS.filter(([key]) => tenant.quotas[key].refused).map(([key, title]) => `${title}: ${count(tenant.quotas[key].refused)}`);
        const all = COLUMNS.reduce((sum, [key]) => sum + tenant.quotas[key].refused, 0);
        return h('tr', {}, name, COLUMNS.map(([key, title, text]) => cell(title, text, tenant.quotas[key])), h('td', {class: 'num', 'data-title': 'Steps so far'}, count(tenant.steps)),
            h('td', {class: all ? 'num state-warn' : 'num', 'data-title': 'Refused', title: refused.join(', ') || null}, count(all)));
    }
    const polling = poll(async () => {
        const q = filter.value.trim(), answer = await page.ask('tenants', {limit: LIMIT, ...(q ? {q} : {})});
        if (q !== filter.value.trim()) return;
        body.replaceChildren(...answer.tenants.map(row));
        empty.hidden = answer.tenants.length > 0;
        setText(said, `${answer.matching === answer.total ? count(answer.total) : `${count(answer.matching)} of ${count(answer.total)}`}${answer.matching > answer.tenants.length ? `, the first ${count(answer.tenants.length)} shown` : ''}`);
    }, POLL_MS);
    filter.addEventListener('input', () => polling.now());
    return {now: polling.now, same: () => true, stop: polling.stop};
}
