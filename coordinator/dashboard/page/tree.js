// SPDX-License-Identifier: Apache-2.0
// The tree of a plan. Hosts are boxes with their workers in them, the root is on top; workers that are in no step of this
// plan stand below it. One stop of the Tab key: arrows go to the parent, the children and the neighbours.
import {h, setAttribute, setText, svg} from './dom.js';
import {bandwidth, bytes, count, middle} from './format.js';
import {stateOf, workerAddress} from './workers.js';

const PAD = 10, HEAD = 22, GAP = 14, LEVEL = 34;
const FEW = 40, ALWAYS = 8, HIGH = 700; // workers that may have, and always have, their names in the drawing; pixels with them
const MARKS = { // of a state, around 0, 0 in a circle of radius r
    ok: (r) => svg('circle', {class: 'mark', r}),
    warn: (r) => svg('path', {class: 'mark', d: `M0,${-1.2 * r}L${1.15 * r},${0.9 * r}H${-1.15 * r}Z`}),
    bad: (r) => svg('path', {class: 'mark', d: `M${-r},${-r}L${r},${r}M${r},${-r}L${-r},${r}`}),
    info: (r) => svg('path', {class: 'mark', d: `M0,${-1.25 * r}L${1.25 * r},0L0,${1.25 * r}L${-1.25 * r},0Z`}),
    off: (r) => svg('circle', {class: 'mark', r, 'stroke-dasharray': '2 2'}),
};

// ---- where everything lies: pure ----

// Nodes of one host by their edges within it. Leaves stand side by side, a parent above the middle of its children. Those of
// a host that is in no step of the plan stand in rows.
function placeHost(host, sizes) {
    let x = 0;
    const place = (node, level) => {
        node.level = level;
        host.levels = Math.max(host.levels, level + 1);
        const mine = node.children.filter((child) => child.host === host.name);
        for (const child of mine) place(child, level + 1);
        node.x = mine.length ? (mine[0].x + mine[mine.length - 1].x) / 2 : x++ * sizes.step + sizes.step / 2;
    };
    const idle = host.nodes.length > 6 && host.nodes.every((node) => !node.planned), columns = Math.ceil(Math.sqrt(2 * host.nodes.length));
    if (idle) {
        host.nodes.forEach((node, i) => Object.assign(node, {level: Math.floor(i / columns), x: (i % columns + 0.5) * sizes.step}));
        host.levels = Math.ceil(host.nodes.length / columns);
        x = columns;
    } else {
        for (const top of host.tops) place(top, 0);
    }
    host.width = Math.max(x * sizes.step, sizes.least) + 2 * PAD;
    const shift = (host.width - x * sizes.step) / 2;
    for (const node of host.nodes) {
        node.x += shift;
        node.y = HEAD + sizes.r + 8 + node.level * sizes.level;
    }
    host.height = HEAD + 8 + 2 * sizes.r + (host.levels - 1) * sizes.level + sizes.foot;
}

// Hosts by the edges between them. Children that have none themselves stand in a block below their parent. Hosts that are
// in no step of the plan stand below all that, in rows as wide as the drawing. flat: how many times as wide as high a block
// is, in hosts.
function placeHosts(roots, wide, flat) {
    const idle = roots.filter((host) => !host.below.length && !host.nodes.some((node) => node.planned)), trees = roots.filter((host) => !idle.includes(host));
    const rows = []; // height of each row of hosts
    const measure = (host, row) => {
        host.row = row;
        rows[row] = Math.max(rows[row] || 0, host.height);
        const leaves = host.below.length > 3 && host.below.every((child) => !child.below.length);
        const widest = leaves ? Math.max(...host.below.map((child) => child.width)) : 0, fit = row ? 0 : Math.floor(wide / (widest + GAP));
        host.columns = leaves ? Math.min(host.below.length, Math.max(fit, Math.ceil(Math.sqrt(flat * host.below.length)))) : host.below.length;
        host.below.forEach((child, i) => measure(child, row + 1 + Math.floor(i / host.columns)));
        host.wide = leaves ? Array(host.columns).fill(widest) : host.below.map((child) => child.span);
        host.span = Math.max(host.width, host.wide.reduce((sum, w) => sum + w + GAP, -GAP));
    };
    const put = (host, left) => {
        host.left = left + (host.span - host.width) / 2;
        const start = left + (host.span - host.wide.reduce((sum, w) => sum + w + GAP, -GAP)) / 2;
        host.below.forEach((child, i) => {
            const column = i % host.columns, at = start + host.wide.slice(0, column).reduce((sum, w) => sum + w + GAP, 0);
            child.aisle = at - GAP / 2; // no box stands there
            put(child, at);
        });
    };
    let left = 0;
    for (const root of trees) {
        measure(root, 0);
        put(root, left);
        left += root.span + GAP;
    }
    const tops = [0];
    rows.forEach((height, i) => (tops[i + 1] = tops[i] + height + LEVEL));
    for (const host of trees.flatMap(below)) host.top = tops[host.row];
    const treeWidth = Math.max(0, left - GAP), room = Math.max(treeWidth, wide);
    let x = 0, y = trees.length ? tops[rows.length] + HEAD : HEAD, tall = 0, width = treeWidth;
    const title = idle.length ? {y: y - 8, x: 0} : null;
    for (const host of idle) {
        if (x && x + host.width > room) {
            y += tall + GAP;
            x = tall = 0;
        }
        [host.left, host.top] = [x, y];
        x += host.width + GAP;
        tall = Math.max(tall, host.height);
        width = Math.max(width, x - GAP);
    }
    for (const host of trees.flatMap(below)) {
        host.left += (width - treeWidth) / 2;
        host.aisle += (width - treeWidth) / 2;
    }
    return {tops, title, width, height: idle.length ? y + tall : Math.max(0, tops[rows.length] - LEVEL)};
}
const below = (host) => [host, ...host.below.flatMap(below)];

// The way of an edge to a node from its parent on another host: below its own host's box, then in the gaps between rows and
// in the aisle beside the child's column, so that it passes no other box. It ends at the node.
export function route(node, {hosts, tops, sizes}) {
    const from = hosts.find((host) => host.name === node.parent.host), to = hosts.find((host) => host.name === node.host);
    const inside = node.parent.children.some((child) => child.host === from.name), end = node.y - sizes.r - 2;
    let x = node.parent.x, path = `M${x},${inside ? from.top + from.height : node.parent.y + sizes.r + sizes.text}`;
    if (to.above !== from) return `${path}L${node.x},${end}`; // a host that stands elsewhere
    const bend = (row, next) => {
        const high = tops[row] - LEVEL, low = tops[row], middle = (high + low) / 2;
        path += `V${high}C${x},${middle} ${next},${middle} ${next},${low}`;
        x = next;
    };
    if (to.row > from.row + 1) bend(from.row + 1, to.aisle);
    bend(to.row, node.x);
    return `${path}V${end}`;
}

// Workers by name, a plan's nodes [name, host, parent's rank] or []: hosts with nodes in them, and the size of it all. Names
// are written where there is room for them in `wide` pixels.
export function layout(workers, ranks, wide) {
    const all = [...ranks.map(([name]) => name), ...workers.map((w) => w.name)], longest = Math.max(0, ...all.map((name) => name.length)), host = Math.max(0, ...workers.map((w) => w.host.length));
    const few = (step) => ({step, r: 14, level: 84, foot: 42, text: 34, least: step - 8});
    const many = {step: 17, r: 5, level: 22, foot: 8, text: 0, least: Math.min(110, Math.max(40, 6.5 * host))}, n = new Set(all).size;
    if (n <= FEW) {
        const own = Math.min(230, Math.max(104, 7 * longest + 12));
        for (const step of [own, (own + 104) / 2, 104]) {
            const placed = layoutOf(workers, ranks, few(step), wide);
            if ((placed.width <= wide / 0.8 && placed.height <= HIGH) || (step === 104 && n <= ALWAYS)) return placed;
        }
    }
    const [first, ...narrower] = [2, 1, 0.5].map((flat) => layoutOf(workers, ranks, many, wide, flat));
    return {...narrower.reduce((best, one) => (best.width > wide / 0.8 && one.width < best.width ? one : best), first), many: true};
}

function layoutOf(workers, ranks, sizes, wide, flat = 2) {
    const nodes = [], hosts = new Map(), byName = new Map();
    const add = (name, host, planned) => {
        const node = {name, host, planned, parent: null, children: []};
        nodes.push(node);
        byName.set(name, node);
        if (!hosts.has(host)) hosts.set(host, {name: host, nodes: [], tops: [], below: [], above: null, levels: 1});
        hosts.get(host).nodes.push(node);
        return node;
    };
    const planned = ranks.map(([name, host]) => add(name, host, true));
    ranks.forEach(([, , parent], i) => {
        if (parent < 0 || !planned[parent]) return;
        planned[i].parent = planned[parent];
        planned[parent].children.push(planned[i]);
    });
    for (const w of workers) if (!byName.has(w.name)) add(w.name, w.host, false);
    for (const node of nodes) {
        const host = hosts.get(node.host);
        if (node.parent?.host === node.host) continue;
        host.tops.push(node);
        if (node.parent && !host.above && reaches(hosts, node.parent.host, host)) {
            host.above = hosts.get(node.parent.host);
            host.above.below.push(host);
        }
    }
    for (const host of hosts.values()) placeHost(host, sizes);
    const all = [...hosts.values()], size = placeHosts(all.filter((host) => !host.above), wide, flat);
    for (const node of nodes) {
        node.x += hosts.get(node.host).left;
        node.y += hosts.get(node.host).top;
    }
    return {nodes, hosts: all, sizes, many: false, ...size};
}

// Whether `below` may stand under that host: it is not above it already.
function reaches(hosts, above, below) {
    for (let host = hosts.get(above); host; host = host.above) if (host === below) return false;
    return true;
}

// ---- drawing ----

export function tree(parent, page) {
    const choice = h('select', {'aria-label': 'Tree to show', onchange: () => {
        chosen = choice.value;
        update();
    }});
    const drawing = h('div', {class: 'tree', role: 'tree', tabindex: '0', 'aria-label': 'Tree of workers', onkeydown: key, onclick: pick});
    const said = h('span', {role: 'status'}), link = h('a', {hidden: true}, 'Details');
    const legend = h('div', {class: 'key'}, ['ok active', 'info joining, draining', 'warn suspect, slow', 'bad lost'].map((entry) => {
        const [kind, ...words] = entry.split(' ');
        return h('span', {class: `state-${kind}`}, svg('svg', {width: 14, height: 14, viewBox: '-8 -8 16 16', 'aria-hidden': 'true', class: 'node'}, mark(kind, 5)), ` ${words.join(' ')}`);
    }));
    parent.append(h('section', {class: 'panel tree-panel', 'aria-labelledby': 'tree-title'},
        h('header', {}, h('h2', {id: 'tree-title'}, 'Tree'), choice, h('span', {class: 'grow'}), legend), drawing, h('div', {class: 'tree-said'}, said, ' ', link)));
    let chosen = '', drawn = '', plan = null, placed = null, current = null, marks = new Map(), edges = [], stepsBefore = 0, asking = false;

    function mark(kind, r) {
        const element = MARKS[kind](r);
        element.style.cssText = 'fill:none;stroke:currentColor;stroke-width:1.8';
        return element;
    }

    function draw() {
        const wide = Math.max(300, parent.clientWidth - 30);
        const scale = Math.max(0.55, Math.min(placed.many ? 1.5 : 1, wide / (placed.width + 2 * GAP), Math.max(1, 520 / placed.height)));
        const root = svg('svg', {viewBox: `${-GAP} -2 ${placed.width + 2 * GAP} ${placed.height + 4}`, width: (placed.width + 2 * GAP) * scale, height: (placed.height + 4) * scale, role: 'presentation', class: placed.many ? 'many' : 'few'});
        edges = [];
        const between = [], within = [];
        for (const node of placed.nodes) {
            if (!node.parent) continue;
            const {x, y} = node.parent, {r, text} = placed.sizes, from = y + r + text, to = node.y - r - 2, half = (from + to) / 2, inside = node.parent.host === node.host;
            const edge = svg('path', {class: inside ? 'edge' : 'edge between', 'aria-hidden': 'true', d: inside ? `M${x},${from}C${x},${half} ${node.x},${half} ${node.x},${to}` : route(node, placed)});
            edges.push(edge);
            (inside ? within : between).push(edge);
        }
        const boxes = placed.hosts.map((host) => svg('rect', {class: 'host', 'aria-hidden': 'true', x: host.left, y: host.top, width: host.width, height: host.height, rx: 8}, svg('title', {}, host.name)));
        const names = placed.hosts.map((host) => svg('text', {class: 'host-name', 'aria-hidden': 'true', x: host.left + PAD, y: host.top + 15}, cut(host.name, host.width - 2 * PAD, 6.2)));
        if (placed.title) names.push(svg('text', {class: 'host-name outside', 'aria-hidden': 'true', x: placed.title.x, y: placed.title.y}, chosen ? 'Not in this tree' : 'Not in a tree yet'));
        root.append(...boxes, ...between, ...within, ...names);
        marks = new Map();
        placed.nodes.forEach((node, i) => {
            const group = svg('g', {class: 'node', id: `node-${i}`, role: 'treeitem', transform: `translate(${node.x},${node.y})`});
            root.append(group);
            marks.set(node.name, {group, node, kind: ''});
        });
        drawing.replaceChildren(root);
        drawing.scrollLeft = (drawing.scrollWidth - drawing.clientWidth) / 2; // to the root
        paint();
        choose(current && marks.has(current) ? current : placed.nodes[0]?.name);
    }

    // What changes without another shape: states, memory.
    function paint() {
        const byName = new Map(page.workers.map((w) => [w.name, w])), {r} = placed.sizes;
        for (const [name, entry] of marks) {
            const w = byName.get(name), [kind, word] = w ? stateOf(w) : ['off', 'gone'], {node, group} = entry;
            const share = w?.capacity_bytes ? w.used_bytes / w.capacity_bytes : 0;
            const level = (at) => (at.parent ? level(at.parent) + 1 : 1);
            setAttribute(group, 'aria-label', w ? `${name}, ${word}, ${bytes(w.used_bytes)} of ${bytes(w.capacity_bytes)}${node.parent ? `, child of ${node.parent.name}` : node.planned ? ', root' : ', not in this tree'}` : `${name}, gone`);
            setAttribute(group, 'aria-level', level(node));
            const look = `${kind} ${share.toFixed(2)} ${placed.many ? '' : w?.tokens}`;
            if (entry.look === look) continue;
            entry.look = look;
            const parts = [svg('circle', {class: 'halo', r: r + 5})];
            if (!placed.many) {
                const round = 2 * Math.PI * r; // memory in use
                parts.push(svg('circle', {class: 'ring', r}), svg('circle', {class: 'used', r, 'stroke-dasharray': `${(round * share).toFixed(2)} ${round.toFixed(2)}`, transform: 'rotate(-90)'}));
            }
            parts.push(mark(kind, placed.many ? r : 5));
            if (!placed.many) parts.push(svg('text', {class: 'name', y: r + 18}, cut(name, placed.sizes.step - 6, 7)), svg('text', {class: 'sub', y: r + 31}, w ? `${count(w.tokens)} tokens` : ''));
            group.replaceChildren(svg('title', {}, group.getAttribute('aria-label')), ...parts);
        }
        for (const [name, {group, node}] of marks) {
            const w = byName.get(name), kind = w ? stateOf(w)[0] : 'off';
            setAttribute(group, 'class', `node state-${kind}${node.planned ? '' : ' idle'}${name === current ? ' current' : ''}`);
        }
        const steps = page.cluster?.counters?.steps ?? 0;
        for (const edge of edges) edge.classList.toggle('busy', steps > stepsBefore && stepsBefore > 0);
        stepsBefore = steps;
    }

    function cut(text, width, letter) {
        return middle(text, Math.max(3, Math.floor(width / letter)));
    }

    function choose(name) {
        if (!name || !marks.has(name)) return;
        marks.get(current)?.group.classList.remove('current');
        current = name;
        const {group} = marks.get(name), w = page.workers.find((one) => one.name === name);
        group.classList.add('current');
        drawing.setAttribute('aria-activedescendant', group.id);
        link.hidden = !w;
        link.setAttribute('href', workerAddress(name));
        link.setAttribute('aria-label', `Details of ${name}`);
        setText(said, w ? `${group.getAttribute('aria-label')} · ${w.host} · ${count(w.tokens)} tokens in ${count(w.chunks)} chunks · ${bandwidth(w.planned_bandwidth)} planned` : name);
    }

    function pick(event) {
        const group = event.target.closest('.node');
        for (const [name, entry] of marks) if (entry.group === group) choose(name);
    }

    function key(event) {
        const node = marks.get(current)?.node;
        if (!node) return;
        const order = placed.nodes, beside = order.filter((n) => n.parent === node.parent), at = beside.indexOf(node);
        const to = {ArrowUp: node.parent, ArrowDown: node.children[0], ArrowRight: beside[at + 1], ArrowLeft: beside[at - 1], Home: order[0], End: order[order.length - 1]}[event.key];
        if (to === undefined && !event.key.startsWith('Arrow')) return;
        event.preventDefault();
        if (to) choose(to.name);
    }

    function list() {
        const plans = [...page.plans].sort((a, b) => b.sessions - a.sessions || b.members - a.members || (a.id < b.id ? -1 : 1)).slice(0, 200);
        const texts = plans.map((p) => `${p.root} · ${count(p.members)} ${p.members === 1 ? 'worker' : 'workers'} · ${count(p.sessions)} ${p.sessions === 1 ? 'session' : 'sessions'}${p.engine === 'stream' ? '' : ` · ${p.engine}`}${p.state === 'ready' ? '' : ` · ${p.state}`}`);
        const key = JSON.stringify([plans.map((p) => p.id), texts]);
        if (choice.dataset.key !== key) {
            choice.dataset.key = key;
            choice.replaceChildren(...plans.map((p, i) => h('option', {value: p.id}, texts[i])));
            if (!plans.length) choice.append(h('option', {value: ''}, 'No tree: no session has tokens'));
        }
        if (!plans.some((p) => p.id === chosen)) chosen = plans[0]?.id ?? '';
        choice.value = chosen;
    }

    async function update() {
        if (!page.cluster) return; // nothing has been answered yet
        list();
        if (chosen && plan?.id !== chosen && !asking) {
            asking = true;
            const got = await page.ask(`plans/${chosen}`).catch(() => null);
            asking = false;
            if (got) plan = got;
        }
        const ranks = plan && plan.id === chosen ? plan.nodes : [];
        const key = JSON.stringify([chosen, ranks.length, page.workers.map((w) => [w.name, w.host]), parent.clientWidth]);
        if (!page.workers.length) return;
        if (key !== drawn) {
            drawn = key;
            placed = layout(page.workers, ranks, Math.max(300, parent.clientWidth - 30));
            draw();
        } else {
            paint();
        }
    }
    const redraw = () => update();
    window.addEventListener('redraw', redraw);
    return {update, stop: () => window.removeEventListener('redraw', redraw)};
}
