// SPDX-License-Identifier: Apache-2.0
// One session: what it is, who holds what of it, where its last steps looked, and where their time went.
import {poll} from './api.js';
import {canvas, color, h, setBadge, setText} from './dom.js';
import {bytes, count, duration, middle, percent, ticks} from './format.js';
import {heat} from './heat.js';
import {workerAddress} from './workers.js';

const POLL_MS = 3000, LANE = 18, AXIS = 20;
const KINDS = {active: 'ok', degraded: 'warn', unavailable: 'bad'};

function panel(main, id, title, ...controls) {
    const body = h('div', {class: 'body'});
    main.append(h('section', {class: 'panel', 'aria-labelledby': id}, h('header', {}, h('h2', {id}, title), ...controls), body));
    return body;
}

// ---- holders: a lane a worker ----
function holders(parent) {
    const element = h('canvas', {'aria-hidden': 'true'}), body = h('tbody'), note = h('p', {class: 'muted small'});
    const box = h('div', {class: 'draw', role: 'img'}, element);
    const empty = h('p', {class: 'empty', hidden: true}, 'No tokens yet. They appear here when an engine appends them.');
    const full = h('div', {}, h('div', {class: 'key'}, h('span', {}, h('i', {class: 'swatch compute'}), 'computes'), h('span', {}, h('i', {class: 'swatch wait'}), 'has a copy'), h('span', {class: 'state-bad'}, '✕ lost')), box, note,
        h('details', {}, h('summary', {}, 'Table'), h('div', {class: 'scroll'}, h('table', {}, h('thead', {}, h('tr', {}, ['Worker', 'Computes', 'Chunks', 'Share', 'Ranges', 'Copies'].map((t) => h('th', {scope: 'col'}, t)))), body))));
    parent.append(full, empty);
    let session = null;
    function draw() {
        if (!session?.end) return;
        const lanes = session.holders, lost = session.lost.length ? 1 : 0;
        const tall = lanes.length > 24 ? Math.max(5, Math.floor(430 / lanes.length)) : LANE;
        const {context: g, width} = canvas(element, (lanes.length + lost) * tall + AXIS);
        g.font = '11px ' + getComputedStyle(document.body).fontFamily;
        const letter = g.measureText('w0-').width / 3, named = (lane) => `${lane.active ? '' : '✕ '}${lane.worker}`;
        const LEFT = Math.ceil(Math.min(width * 0.35, Math.max(60, ...lanes.map((lane) => g.measureText(named(lane)).width + 14)))), scale = (width - LEFT - 12) / session.end;
        g.textBaseline = 'middle';
        const bands = (ranges, top, height, style) => {
            g.fillStyle = style;
            for (const [first, n] of ranges) g.fillRect(LEFT + first * scale, top, Math.max(1, n * scale - (n * scale > 4 ? 0.5 : 0)), height);
        };
        const pad = tall > 8 ? 2 : 0.5, serve = color('compute'), follow = color('wait'), rail = color('sunken'), muted = color('muted'), every = Math.ceil(12 / tall);
        lanes.forEach((lane, i) => {
            const top = i * tall;
            g.fillStyle = rail;
            g.fillRect(LEFT, top + pad, session.end * scale, tall - 2 * pad);
            bands(lane.follows, top + pad, tall - 2 * pad, follow);
            bands(lane.serves, top + pad, tall - 2 * pad, serve);
            g.fillStyle = lane.active ? muted : color('bad');
            g.textAlign = 'right';
            if (i % every === 0) g.fillText(g.measureText(named(lane)).width > LEFT - 8 ? middle(named(lane), Math.floor((LEFT - 12) / letter)) : named(lane), LEFT - 8, top + tall / 2);
        });
        if (lost) {
            bands(session.lost, lanes.length * tall + pad, tall - 2 * pad, color('bad'));
            g.fillStyle = color('bad');
            g.textAlign = 'right';
            g.fillText('✕ lost', LEFT - 8, (lanes.length + 0.5) * tall);
        }
        g.fillStyle = muted;
        for (const t of ticks(session.end, Math.max(2, width / 130))) {
            const x = LEFT + t * scale, bottom = (lanes.length + lost) * tall;
            g.fillRect(x, bottom, 1, 4);
            g.textAlign = t ? 'center' : 'left';
            if (x < width - 20) g.fillText(count(t), x, bottom + 13);
        }
    }
    const some = (ranges) => ranges.slice(0, 4).map(([first, n]) => `${count(first)}–${count(first + n - 1)}`).join(', ') + (ranges.length > 4 ? `, and ${count(ranges.length - 4)} more` : '') || '–';
    return {draw, update(next) {
        session = next;
        full.hidden = !session.end;
        empty.hidden = session.end > 0;
        const all = session.holders.reduce((sum, lane) => sum + lane.tokens, 0) || 1;
        box.setAttribute('aria-label', `${count(session.end)} tokens over ${count(session.holders.length)} workers${session.lost.length ? '; some are lost' : ''}; see the table below`);
        setText(note, session.grain ? `Gaps of less than ${count(session.grain)} tokens are not drawn.` : '');
        body.replaceChildren(...session.holders.map((lane) => h('tr', {}, h('td', {}, h('a', {href: workerAddress(lane.worker)}, lane.worker)), h('td', {}, `${count(lane.tokens)} tokens`), h('td', {}, count(lane.chunks)), h('td', {}, percent(lane.tokens / all)), h('td', {}, some(lane.serves)), h('td', {}, some(lane.follows)))));
        draw();
    }};
}

// ---- where a step's time went: the mean of the last steps over the newest one's workers ----
function waterfall(parent) {
    const body = h('tbody'), total = h('p', {class: 'small'});
    const key = h('div', {class: 'key'}, [['own', 'coordinator'], ['queue', 'queued'], ['compute', 'computing'], ['wait', 'waiting for others']].map(([name, text]) => h('span', {}, h('i', {class: `swatch ${name}`}), text)));
    const box = h('div', {hidden: true}, key, total, h('div', {class: 'scroll', tabindex: '0', role: 'region', 'aria-label': 'Time of each worker'}, h('table', {}, h('caption', {class: 'hidden-text'}, 'Time of recent steps, one row per worker'),
        h('thead', {}, h('tr', {}, ['Worker', 'Tokens', 'Queue', 'Compute', 'Wait', 'Share of step time'].map((t, i) => h('th', {scope: 'col', class: i > 0 && i < 5 ? 'num' : null}, t)))), body)));
    parent.append(box);
    const piece = (name, share) => {
        const element = h('i', {class: name});
        element.style.width = `${(100 * Math.min(1, share)).toFixed(2)}%`;
        return element;
    };
    return {update(steps) {
        box.hidden = !steps.length;
        if (!steps.length) return false;
        const newest = steps[steps.length - 1], names = (s) => s.workers.map((w) => w.worker).sort().join('\n');
        const same = steps.filter((s) => names(s) === names(newest)), mean = (of) => same.reduce((sum, s) => sum + of(s), 0) / same.length;
        const tree = mean((s) => s.tree_ns), own = mean((s) => s.coordinator_ns), all = mean((s) => s.total_ns), mass = mean((s) => s.mass_ns);
        setText(total, `Mean of ${count(same.length)} ${same.length === 1 ? 'step' : 'steps'}, the newest ${duration(newest.age_ns)} ago: ${duration(all)} in total, ${duration(own)} of it in the coordinator, ${duration(tree)} in the tree${mass > 0 ? ` and ${duration(mass)} for attention masses that its client requested` : ''}.`);
        const ranks = [...newest.workers].sort((a, b) => a.rank - b.rank), depth = new Map();
        for (const w of ranks) depth.set(w.rank, w.parent < 0 ? 0 : (depth.get(w.parent) ?? 0) + 1);
        const lane = (...pieces) => h('td', {}, h('div', {class: 'steps', 'aria-hidden': 'true'}, pieces));
        const first = h('tr', {}, h('td', {class: 'muted'}, 'coordinator'), h('td'), h('td'), h('td', {class: 'num'}, duration(own)), h('td', {class: 'num'}, duration(tree)), lane(piece('own', own / all), piece('wait', tree / all)));
        body.replaceChildren(first, ...ranks.map((w) => {
            const of = (name) => mean((s) => s.workers.find((other) => other.worker === w.worker)[name]);
            const [queue, compute, wait] = ['queue_ns', 'compute_ns', 'wait_ns'].map(of);
            return h('tr', {}, h('td', {}, `${'\u2003'.repeat(depth.get(w.rank))}${depth.get(w.rank) ? '└ ' : ''}${w.worker}`), h('td', {class: 'num'}, count(w.tokens)), h('td', {class: 'num'}, duration(queue)), h('td', {class: 'num'}, duration(compute)), h('td', {class: 'num'}, duration(wait)),
                lane(piece('before', own / all), piece('queue', queue / all), piece('compute', compute / all), piece('wait', wait / all)));
        }));
        return true;
    }};
}

// ---- the view ----
export function open(main, page, id, watched) {
    const title = h('h1', {}, 'Session'), state = h('span', {class: 'badge'}), where = h('span', {class: 'muted mono small'}, id);
    const facts = h('dl', {class: 'facts'}), gone = h('p', {class: 'trouble', role: 'alert', hidden: true});
    let watching = Boolean(watched);
    const button = h('button', {type: 'button', 'aria-pressed': String(watching), onclick: () => {
        watching = !watching;
        history.replaceState(null, '', `#/sessions/${id}${watching ? '/watch' : ''}`);
        button.setAttribute('aria-pressed', String(watching));
        setText(button, watching ? 'Watching' : 'Watch steps');
        polling.now();
    }}, watching ? 'Watching' : 'Watch steps');
    const cost = h('span', {class: 'muted small'}, 'While you watch, the workers also compute attention masses: a step takes up to 2.5 times the work.');
    const whole = h('div', {class: 'views', hidden: true}); // what there is once an answer has come
    main.append(h('div', {class: 'crumbs'}, h('a', {href: '#/sessions'}, 'Sessions'), h('span', {class: 'muted', 'aria-hidden': 'true'}, '/'), title, state, where), gone, whole);
    whole.append(h('section', {class: 'panel', 'aria-label': 'Facts'}, h('div', {class: 'body'}, facts)));
    const bands = holders(panel(whole, 'holders-title', 'Token placement'));
    const look = panel(whole, 'mass-title', 'Attention mass', h('span', {class: 'grow'}), cost, button), map = heat(look), noMass = h('p', {class: 'empty'});
    look.append(noMass);
    const time = panel(whole, 'trace-title', 'Step time'), fall = waterfall(time), noTrace = h('p', {class: 'empty'});
    time.append(noTrace);

    function write(s) {
        setText(title, s.name || s.id);
        document.title = `${s.name || s.id} · Banyan`;
        setBadge(state, KINDS[s.state] || 'off', s.state);
        const {spec} = s, low = Math.min(...s.lengths), high = Math.max(...s.lengths);
        const list = [['Tokens', low === high ? count(high) : `${count(low)} to ${count(high)}`], ['Layers', `${count(s.lengths.length)}${spec.kinds > 1 ? ` of ${spec.kinds} kinds` : ''}`],
            ['Heads', `${spec.q_heads} query, ${spec.kv_heads} KV × ${spec.k_dim}`], ['K and V', `${spec.kv_type}, ${bytes(spec.token_bytes)} per token`], ['Chunks', `${count(s.chunks)} of ${count(spec.chunk_tokens)} tokens${s.sealed ? `, ${count(s.sealed)} sealed` : ''}`],
            ['Copies', `${spec.replicas}${s.thin_chunks ? `, ${count(s.thin_chunks)} chunks with too few copies` : ''}`], ['Steps', count(s.steps)], ['Idle', `${duration(s.idle_ns)}${spec.idle_ttl_ns ? `, deleted after ${duration(spec.idle_ttl_ns)}` : ''}`], ['Epoch', count(s.epoch)]];
        if (spec.window) list.push(['Window', `${count(spec.window)} tokens`]);
        if (s.forgotten) list.push(['Forgotten', `tokens before ${count(s.forgotten)}`]);
        if (facts.children.length !== list.length) facts.replaceChildren(...list.map(([name]) => h('div', {}, h('dt', {}, name), h('dd', {}))));
        list.forEach(([name, text], i) => {
            setText(facts.children[i].firstChild, name);
            setText(facts.children[i].lastChild, text);
        });
        bands.update(s);
    }
    const nothing = (answer, s) => (answer.full ? 'Too many sessions are being watched. Close other pages and try again.' : answer.watching ? 'Waiting for the next steps …' : s.end ? 'No steps recorded. Watch the session while it is in use.' : 'No steps yet.');
    const polling = poll(async () => {
        try {
            const s = await page.ask(`sessions/${id}`), layers = s.lengths.length, watch = watching ? {watch: 1} : {};
            gone.hidden = true;
            whole.hidden = false;
            write(s);
            const [mass, trace] = await Promise.all([page.ask(`sessions/${id}/mass`, {steps: Math.min(64, layers), bins: 128, ...watch}), page.ask(`sessions/${id}/trace`, {steps: Math.min(32, layers), ...watch})]);
            noMass.hidden = map.update(mass.steps);
            setText(noMass, mass.steps.length ? `Attention mass cannot be computed: ${mass.steps[mass.steps.length - 1].failure}` : nothing(mass, s));
            noTrace.hidden = fall.update(trace.steps);
            setText(noTrace, nothing(trace, s));
        } catch (error) {
            gone.hidden = error.status !== 404;
            state.hidden = error.status === 404;
            setText(gone, whole.hidden ? 'There is no session with this id.' : 'This session no longer exists; this page shows its last state.');
            throw error;
        }
    }, POLL_MS);
    const redraw = () => {
        bands.draw();
        map.draw();
    };
    window.addEventListener('redraw', redraw);
    return {now: polling.now, same: (other) => other === id, stop() {
        polling.stop();
        window.removeEventListener('redraw', redraw);
    }};
}
