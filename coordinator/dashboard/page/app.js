// SPDX-License-Identifier: Apache-2.0
// The page: what is always seen, which view is shown, and what happens when the coordinator does not answer.
import {ask, ApiError, dropToken, hasToken, poll, setToken} from './api.js';
import {setBadge, setText} from './dom.js';
import * as clusterView from './cluster.js';
import * as eventsView from './events.js';
import * as sessionView from './session.js';
import * as sessionsView from './sessions.js';
import {summary} from './summary.js';
import * as tenantsView from './tenants.js';
import * as workerView from './worker.js';

const POLL_MS = 2000, HISTORY_MS = 15000; // of the history: the coordinator has a new sample each 30 s
const $ = (id) => document.getElementById(id);

// ---- the theme: the system's, or light or dark, kept in this browser ----
const THEMES = {auto: '◐ Auto', light: '☀ Light', dark: '☾ Dark'};
function setTheme(theme) {
    if (theme === 'auto') delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = theme;
    try {
        localStorage.setItem('banyan-theme', theme);
    } catch { /* a browser that keeps nothing */ }
    $('theme').textContent = THEMES[theme];
    $('theme').setAttribute('aria-label', `Theme: ${theme}. Change`);
    window.dispatchEvent(new Event('redraw'));
}
let theme = 'auto';
try {
    theme = localStorage.getItem('banyan-theme') || 'auto';
} catch { /* likewise */ }
setTheme(theme in THEMES ? theme : 'auto');
$('theme').addEventListener('click', () => {
    const names = Object.keys(THEMES), now = document.documentElement.dataset.theme || 'auto';
    setTheme(names[(names.indexOf(now) + 1) % names.length]);
});
matchMedia('(prefers-color-scheme: dark)').addEventListener('change', () => window.dispatchEvent(new Event('redraw')));
window.addEventListener('resize', () => window.dispatchEvent(new Event('redraw')));

// ---- trouble ----
let since = null, lastGood = null;
function trouble(text) {
    $('trouble').hidden = !text;
    if (text) setText($('trouble'), text);
}

// Everything that asks goes through here: it says what is wrong, and throws.
async function careful(path, query, wanted) {
    try {
        const answer = await ask(path, query, wanted);
        since = null;
        lastGood = Date.now();
        trouble(null);
        return answer;
    } catch (error) {
        if (error instanceof ApiError && error.status === 401) login(asked ? 'Wrong token.' : '');
        else if (error instanceof ApiError && error.status === 403 && hasToken()) {
            dropToken(); // it is valid, and has no access to this page
            login(`${error.message[0].toUpperCase()}${error.message.slice(1)}.`);
        }
        else if (error instanceof ApiError && [0, 403, 429, 503].includes(error.status) && (wanted?.() ?? true)) {
            since ??= new Date();
            trouble(error.status ? `The coordinator reports: ${error.message}. Retrying.`
                : `The coordinator has not answered since ${since.toLocaleTimeString('en-GB')}. Retrying; this page shows its last answer.`);
            if (!error.status) setBadge($('health'), 'bad', 'no answer');
        }
        throw error;
    }
}

// ---- the token ----
let asked = false;
function login(wrong) {
    $('logout').hidden = true;
    if ($('login').open) return;
    $('login-wrong').hidden = !wrong;
    setText($('login-wrong'), wrong);
    asked = true;
    $('token').value = '';
    $('login').showModal();
}
$('login').addEventListener('cancel', (event) => event.preventDefault());
$('login').querySelector('form').addEventListener('submit', () => {
    setToken($('token').value.trim());
    $('logout').hidden = false;
    polling.now();
    view?.now?.();
});
$('logout').hidden = !hasToken();
$('logout').addEventListener('click', () => {
    dropToken();
    location.reload(); // nothing of what was shown is left
});

// ---- views ----
const page = {ask: careful, cluster: null, workers: [], plans: [], history: null};
const VIEWS = [
    [/^#\/sessions\/([0-9a-f]{16})(\/watch)?$/, sessionView, 'sessions', 'Session'],
    [/^#\/sessions(?:\?(.*))?$/, sessionsView, 'sessions', 'Sessions'],
    [/^#\/workers\/([^/?]+)$/, workerView, 'cluster', 'Worker'],
    [/^#\/tenants$/, tenantsView, 'tenants', 'Tenants'],
    [/^#\/events(?:\?(.*))?$/, eventsView, 'events', 'Events'],
    [/^/, clusterView, 'cluster', 'Cluster'],
];
let view = null, first = true;
function show() {
    const [pattern, module, name, title] = VIEWS.find(([at]) => at.test(location.hash || '#/'));
    const found = pattern.exec(location.hash || '#/');
    if (view?.module === module && view.same?.(...found.slice(1))) return;
    view?.stop?.();
    $('main').replaceChildren();
    document.title = `${title} · Banyan`;
    view = {module, ...module.open($('main'), page, ...found.slice(1))};
    for (const link of document.querySelectorAll('nav a[data-view]')) {
        if (link.dataset.view === name) link.setAttribute('aria-current', 'page');
        else link.removeAttribute('aria-current');
    }
    if (!first) $('main').focus({preventScroll: true}); // so that a screen reader goes on there
    first = false;
    view.update?.();
}
window.addEventListener('hashchange', show);

// ---- what is always asked ----
const strip = summary($('summary'));
let historyAt = -HISTORY_MS;
const polling = poll(async () => {
    const cluster = await careful('cluster');
    page.cluster = cluster;
    setText($('cluster'), `${cluster.cluster} · term ${cluster.term} · ${cluster.version}`);
    setBadge($('health'), cluster.ready ? 'ok' : 'warn', cluster.ready ? 'ready' : 'not ready');
    $('health').title = cluster.health;
    const [workers, plans] = await Promise.all([careful('workers'), careful('plans')]);
    page.workers = workers.workers;
    page.plans = plans.plans;
    if (performance.now() - historyAt >= HISTORY_MS) {
        page.history = await careful('history');
        historyAt = performance.now();
    }
    strip.update(page);
    view.update?.();
}, POLL_MS);
setInterval(() => {
    const s = lastGood === null ? 0 : Math.round((Date.now() - lastGood) / 1000);
    setText($('age'), lastGood === null ? '' : s < 5 ? 'live' : `updated ${s} s ago`);
}, 1000);
show();

// For tests, and whoever wants to know: how long this page has kept the browser busy in one go.
const tasks = {long: 0, most: 0};
window.banyanTasks = tasks;
try {
    new PerformanceObserver((list) => {
        for (const entry of list.getEntries()) {
            tasks.long++;
            tasks.most = Math.max(tasks.most, entry.duration);
        }
    }).observe({type: 'longtask', buffered: true});
} catch { /* not every browser counts them */ }
