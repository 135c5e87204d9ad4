// SPDX-License-Identifier: Apache-2.0
// What has happened, the newest on top. Events that repeat are one entry, which counts them; days stand between entries.
import {poll} from './api.js';
import {badge, h, setText} from './dom.js';
import {count} from './format.js';
import {workerAddress} from './workers.js';

const POLL_MS = 2000, KEPT = 500, SHORT = 60; // SHORT: entries of the list beside the tree
const KINDS = {info: 'info', warn: 'warn', error: 'bad'};
const WORDS = {info: 'info', warn: 'warning', error: 'error'};
const rank = (severity) => Math.max(0, Object.keys(KINDS).indexOf(severity));
const day = (when) => when.toLocaleDateString('en-GB', {weekday: 'long', day: 'numeric', month: 'long', year: 'numeric'});
const clock = (when) => when.toLocaleTimeString('en-GB');

// Events, the newest first, as entries {event, n, first}: those that differ in their time alone are one, at the place of the
// newest. `grouped` false: an entry each.
export function entries(events, grouped) {
    const out = [], byKey = new Map();
    for (const event of events) {
        const key = JSON.stringify([event.kind, event.severity, event.text, event.worker, event.session]), same = grouped && !event.missed && byKey.get(key);
        if (same) {
            same.n += event.count;
            same.first = event.wall_ns;
            continue;
        }
        const entry = {event, n: event.count, first: event.wall_ns};
        byKey.set(key, entry);
        out.push(entry);
    }
    return out;
}

// tall: the whole view, with a search; worker: of this one alone.
export function events(parent, page, {tall, worker = null, words = ''}) {
    const given = new URLSearchParams(words), kept = []; // the newest first
    const list = h('ul', {class: tall ? 'events tall' : 'events', tabindex: '0', hidden: true, 'aria-label': 'Events, newest first'}), empty = h('p', {class: 'empty'}, ' ');
    const said = h('span', {class: 'hidden-text', role: 'status'}), shown = h('span', {class: 'muted small'});
    const choice = h('select', {'aria-label': 'Lowest severity', onchange: chosen}, h('option', {value: '0'}, 'All severities'), h('option', {value: '1'}, 'Warnings and errors'), h('option', {value: '2'}, 'Errors'));
    const kind = h('select', {'aria-label': 'Kind', onchange: chosen}, h('option', {value: ''}, 'All kinds'));
    const search = h('input', {type: 'search', placeholder: 'Search events', 'aria-label': 'Search events', maxlength: 60, oninput: chosen});
    const group = h('input', {type: 'checkbox', checked: true, onchange: chosen});
    const more = tall ? [kind, h('label', {class: 'switch small'}, group, 'Group repeats'), search] : [];
    parent.append(h('section', {class: 'panel events-panel', 'aria-labelledby': 'events-title'}, h('header', {}, h('h2', {id: 'events-title'}, 'Events'), shown, h('span', {class: 'grow'}), choice, ...more), said, list, empty));
    choice.value = ['1', '2'].includes(given.get('severity')) ? given.get('severity') : '0';
    search.value = given.get('q') || '';
    group.checked = given.get('group') !== '0';
    let seq = 0, term = 0, wanted = given.get('kind') || ''; // seq, term: of the last one seen

    function item({event: e, n, first}) {
        if (e.missed) return h('li', {class: 'event muted'}, h('span'), h('div', {class: 'what'}, `${count(e.missed)} older events were dropped`));
        const when = new Date(e.wall_ns / 1e6), began = new Date(first / 1e6);
        const since = n > 1 ? ` · ${count(n)} times${first < e.wall_ns ? ` since ${day(began) === day(when) ? '' : `${began.toLocaleDateString('en-GB', {day: 'numeric', month: 'short'})}, `}${clock(began)}` : ''}` : '';
        const about = [e.worker && e.worker !== worker && ['worker', e.worker, workerAddress(e.worker)], e.session && ['session', e.session_name || e.session, `#/sessions/${e.session}`]].filter(Boolean);
        return h('li', {class: 'event'}, h('time', {datetime: when.toISOString(), title: when.toLocaleString()}, clock(when)),
            h('div', {class: 'what'}, badge(KINDS[e.severity] || 'off', WORDS[e.severity] || e.severity), ` ${e.text || e.kind}`,
                h('div', {class: 'muted small'}, h('span', {class: 'kind'}, e.kind), since, ...about.flatMap(([what, name, address]) => [` · ${what} `, h('a', {href: address}, name)]))));
    }
    function matches(e, text) {
        return (!worker || e.worker === worker) && rank(e.severity) >= Number(choice.value) && (!tall || ((!wanted || e.kind === wanted) && (!text || `${e.kind} ${e.text} ${e.worker || ''} ${e.session_name || ''} ${e.session || ''}`.toLowerCase().includes(text))));
    }
    function draw() {
        const text = search.value.trim().toLowerCase(), all = kept.filter((e) => (e.missed ? !wanted && !text && !worker : matches(e, text)));
        const some = entries(all, group.checked).slice(0, tall ? KEPT : SHORT), items = [];
        let last = '';
        for (const entry of some) {
            const now = entry.event.wall_ns ? day(new Date(entry.event.wall_ns / 1e6)) : last;
            if (now !== last) items.push(h('li', {class: 'day'}, now));
            last = now;
            items.push(item(entry));
        }
        list.replaceChildren(...items);
        list.hidden = !items.length;
        empty.hidden = items.length > 0;
        setText(empty, kept.length && !worker ? 'No matching events.' : kept.length ? 'No recent events about this worker.' : 'No events yet.');
        const kinds = [...new Set([...kept.filter((e) => !e.missed).map((e) => e.kind), ...(wanted ? [wanted] : [])])].sort();
        if (kind.dataset.kinds !== kinds.join()) {
            kind.dataset.kinds = kinds.join();
            kind.replaceChildren(h('option', {value: ''}, 'All kinds'), ...kinds.map((name) => h('option', {value: name}, name)));
        }
        kind.value = wanted;
        const total = kept.reduce((sum, e) => sum + (e.count || 0), 0), now = all.reduce((sum, e) => sum + (e.count || 0), 0);
        if (tall) setText(shown, now === total ? count(total) : `${count(now)} of ${count(total)}`);
    }
    function chosen() {
        wanted = kind.value;
        const query = new URLSearchParams(Object.entries({severity: choice.value === '0' ? '' : choice.value, kind: wanted, q: search.value.trim(), group: group.checked ? '' : '0'}).filter(([, value]) => value)).toString();
        if (tall) history.replaceState(null, '', `#/events${query ? `?${query}` : ''}`);
        draw();
    }
    const polling = poll(async () => {
        const answer = await page.ask('events', {after: seq, limit: 200, ...(term ? {term} : {})});
        if (answer.anew) seq = 0; // another life of the coordinator: its numbers are others
        const fresh = answer.events;
        if (fresh.length) {
            if (seq && fresh[0].seq > seq + 1) kept.unshift({missed: fresh[0].seq - seq - 1});
            kept.unshift(...[...fresh].reverse());
            kept.length = Math.min(kept.length, KEPT);
            const worst = fresh.filter((e) => rank(e.severity) > 0 && (!worker || e.worker === worker)).pop();
            if (seq && worst) setText(said, `${WORDS[worst.severity]}: ${worst.text}`);
            ({seq, term} = fresh[fresh.length - 1]);
        }
        if (fresh.length || !list.children.length) draw();
        if (answer.last > seq && fresh.length) polling.now();
    }, POLL_MS);
    return {now: polling.now, stop: polling.stop};
}

export function open(main, page, words) {
    main.append(h('h1', {class: 'hidden-text'}, 'Events'));
    const told = events(main, page, {tall: true, words});
    return {now: told.now, same: () => true, stop: told.stop};
}
