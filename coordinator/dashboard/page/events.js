// SPDX-License-Identifier: Apache-2.0
// What has happened, the newest on top.
import {poll} from './api.js';
import {badge, h, setText} from './dom.js';
import {count} from './format.js';

const POLL_MS = 2000, KEPT = 500;
const KINDS = {info: 'info', warn: 'warn', error: 'bad'};
const WORDS = {info: 'info', warn: 'warning', error: 'error'};

export function events(parent, page, {tall}) {
    const list = h('ul', {class: tall ? 'events tall' : 'events', tabindex: '0', hidden: true, 'aria-label': 'Events, the newest first'}), empty = h('p', {class: 'empty'}, ' ');
    const said = h('span', {class: 'hidden-text', role: 'status'});
    const choice = h('select', {'aria-label': 'Least severity', onchange: filter}, h('option', {value: '0'}, 'All'), h('option', {value: '1'}, 'Warnings and errors'), h('option', {value: '2'}, 'Errors'));
    parent.append(h('section', {class: 'panel events-panel', 'aria-labelledby': 'events-title'}, h('header', {}, h('h2', {id: 'events-title'}, 'Events'), h('span', {class: 'grow'}), choice), said, list, empty));
    let seq = 0, term = 0; // of the last one seen

    const rank = (severity) => Math.max(0, Object.keys(KINDS).indexOf(severity));
    function item(e) {
        const when = new Date(e.wall_ns / 1e6), today = when.toDateString() === new Date().toDateString();
        const about = [e.worker && ['worker', e.worker], e.session && ['session', e.session_name || e.session]].filter(Boolean);
        return h('li', {'data-rank': rank(e.severity)}, h('time', {datetime: when.toISOString(), title: when.toLocaleString()}, today ? when.toLocaleTimeString('en-GB') : when.toLocaleDateString('en-GB')),
            h('div', {class: 'what'}, badge(KINDS[e.severity] || 'off', WORDS[e.severity] || e.severity), ` ${e.text}${e.count > 1 ? ` (${count(e.count)} times)` : ''}`,
                ...about.map(([kind, name]) => h('div', {class: 'muted small'}, `${kind} `, kind === 'session' ? h('a', {href: `#/sessions/${e.session}`}, name) : name))));
    }
    function filter() {
        let shown = 0;
        for (const element of list.children) {
            element.hidden = Number(element.dataset.rank) < Number(choice.value);
            shown += !element.hidden;
        }
        list.hidden = shown === 0;
        empty.hidden = shown > 0;
        setText(empty, list.children.length ? 'No events at this severity.' : 'No events yet.');
    }
    const polling = poll(async () => {
        const answer = await page.ask('events', {after: seq, limit: 200, ...(term ? {term} : {})}).catch((error) => {
            if (error.status === 404) setText(empty, 'This coordinator has no events.');
            throw error;
        });
        if (answer.anew) seq = 0; // another life of the coordinator: its numbers are others
        const fresh = answer.events;
        if (fresh.length) {
            if (seq && fresh[0].seq > seq + 1 && list.children.length)
                list.prepend(h('li', {'data-rank': 0}, h('span'), h('div', {class: 'what muted'}, `${count(fresh[0].seq - seq - 1)} events were missed`)));
            list.prepend(...fresh.map(item).reverse());
            while (list.children.length > KEPT) list.lastChild.remove();
            const worst = fresh.filter((e) => rank(e.severity) > 0).pop();
            if (seq && worst) setText(said, `${worst.severity}: ${worst.text}`);
            ({seq, term} = fresh[fresh.length - 1]);
        }
        filter();
        if (answer.last > seq && fresh.length) polling.now();
    }, POLL_MS);
    return {now: polling.now, stop: polling.stop};
}

export function open(main, page) {
    main.append(h('h1', {class: 'hidden-text'}, 'Events'));
    const told = events(main, page, {tall: true});
    return {now: told.now, same: () => true, stop: told.stop};
}
