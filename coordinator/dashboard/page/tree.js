// SPDX-License-Identifier: Apache-2.0
// The tree of a plan. Hosts are boxes with their workers in them, the root is on top; workers that are in no step of this
// plan stand beside it. One stop of the Tab key: arrows go to the parent, the children and the neighbours.
import {h, setAttribute, setText, svg} from './dom.js';
import {bandwidth, bytes, count} from './format.js';
import {stateOf} from './workers.js';

const PAD = 10, HEAD = 22, GAP = 14, LEVEL = 34;
const MARKS = { // of a state, around 0, 0 in a circle of radius r
    ok: (r) => svg('circle', {class: 'mark', r}),
    warn: (r) => svg('path', {class: 'mark', d: `M0,${-1.2 * r}L${1.15 * r},${0.9 * r}H${-1.15 * r}Z`}),
    bad: (r) => svg('path', {class: 'mark', d: `M${-r},${-r}L${r},${r}M${r},${-r}L${-r},${r}`}),
    info: (r) => svg('path', {class: 'mark', d: `M0,${-1.25 * r}L${1.25 * r},0L0,${1.25 * r}L${-1.25 * r},0Z`}),
    off: (r) => svg('circle', {class: 'mark', r, 'stroke-dasharray': '2 2'}),
};

// ---- where everything lies: pure ----

// Nodes of one host by their edges within it. Leaves stand side by side, a parent above the middle of its children.
function placeHost(host, sizes) {
    let x = 0;
    const place = (node, level) => {
        node.level = level;
        host.levels = Math.max(host.levels, level + 1);
        const mine = node.children.filter((child) => child.host === host.name);
        for (const child of mine) place(child, level + 1);
        node.x = mine.length ? (mine[0].x + mine[mine.length - 1].x) / 2 : x++ * sizes.step + sizes.step / 2;
    };
    for (const top of host.tops) place(top, 0);
    host.width = Math.max(x * sizes.step, sizes.least) + 2 * PAD;
    const shift = (host.width - x * sizes.step) / 2;
    for (const node of host.nodes) {
        node.x += shift;
        node.y = HEAD + sizes.r + 8 + node.level * sizes.level;
    }
    host.height = HEAD + 8 + 2 * sizes.r + (host.levels - 1) * sizes.level + sizes.foot;
}

// Hosts by the edges between them. Children that have none themselves stand in a block below their parent.
function placeHosts(roots) {
    const rows = []; // height of each row of hosts
    const measure = (host, row) => {
        host.row = row;
        rows[row] = Math.max(rows[row] || 0, host.height);
        const leaves = host.below.length > 3 && host.below.every((child) => !child.below.length);
        host.columns = leaves ? Math.ceil(Math.sqrt(host.below.length)) : host.below.length;
        host.below.forEach((child, i) => measure(child, row + 1 + Math.floor(i / host.columns)));
        host.wide = leaves ? Array(host.columns).fill(Math.max(...host.below.map((child) => child.width))) : host.below.map((child) => child.span);
        host.span = Math.max(host.width, host.wide.reduce((sum, w) => sum + w + GAP, -GAP));
    };
    const put = (host, left) => {
        host.left = left + (host.span - host.width) / 2;
        const start = left + (host.span - host.wide.reduce((sum, w) => sum + w + GAP, -GAP)) / 2;
        host.below.forEach((child, i) => {
            const column = i % host.columns;
            put(child, start + host.wide.slice(0, column).reduce((sum, w) => sum + w + GAP, 0));
        });
    };
    let left = 0;
    for (const root of roots) {
        measure(root, 0);
        put(root, left);
        left += root.span + GAP;
    }
    const tops = [0];
    rows.forEach((height, i) => (tops[i + 1] = tops[i] + height + LEVEL));
    return {tops, width: Math.max(0, left - GAP), height: Math.max(0, tops[rows.length] - LEVEL)};
}

// Workers by name, a plan's nodes [name, host, parent's rank] or []: hosts with nodes in them, and the size of it all.
export function layout(workers, ranks) {
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
    const many = nodes.length > 40;
    const sizes = many ? {step: 17, r: 5, level: 22, foot: 8, least: 40} : {step: 104, r: 14, level: 84, foot: 42, least: 96};
    for (const host of hosts.values()) placeHost(host, sizes);
    const all = [...hosts.values()], size = placeHosts(all.filter((host) => !host.above));
    for (const host of all) host.top = size.tops[host.row];
    for (const node of nodes) {
        node.x += hosts.get(node.host).left;
        node.y += hosts.get(node.host).top;
    }
    return {nodes, hosts: all, sizes, many, ...size};
}

// Whether `below` may stand under that host: it is not above it already.
function reaches(hosts, above, below) {
    for (let host = hosts.get(above); host; host = host.above) if (host === below) return false;
    return true;
}

// ---- drawing ----

export function tree(parent, page) {
    const choice = h('select', {'aria-label': 'Which tree', onchange: () => {
        chosen = choice.value;
        update();
    }});
    const drawing = h('div', {class: 'tree', role: 'tree', tabindex: '0', 'aria-label': 'The tree of workers', onkeydown: key, onclick: pick});
    const said = h('div', {class: 'tree-said', role: 'status'});
    const legend = h('div', {class: 'key'}, ['ok active', 'info joining, draining', 'warn suspect, slow', 'bad lost'].map((entry) => {
        const [kind, ...words] = entry.split(' ');
        return h('span', {class: `state-${kind}`}, svg('svg', {width: 14, height: 14, viewBox: '-8 -8 16 16', 'aria-hidden': 'true', class: 'node'}, mark(kind, 5)), ` ${words.join(' ')}`);
    }));
    parent.append(h('section', {class: 'panel tree-panel', 'aria-labelledby': 'tree-title'},
        h('header', {}, h('h2', {id: 'tree-title'}, 'Tree'), choice, h('span', {class: 'grow'}), legend), drawing, said));
    let chosen = '', drawn = '', plan = null, placed = null, current = null, marks = new Map(), edges = [], stepsBefore = 0, asking = false;

    function mark(kind, r) {
        const element = MARKS[kind](r);
        element.style.cssText = 'fill:none;stroke:currentColor;stroke-width:1.8';
        return element;
    }

    function draw() {
        const wide = Math.max(300, parent.clientWidth - 30);
        const scale = Math.max(0.55, Math.min(1, wide / (placed.width + 4)));
        const root = svg('svg', {viewBox: `-2 -2 ${placed.width + 4} ${placed.height + 4}`, width: (placed.width + 4) * scale, height: (placed.height + 4) * scale, role: 'presentation', class: placed.many ? 'many' : 'few'});
        edges = [];
        const between = [], within = [];
        for (const node of placed.nodes) {
            if (!node.parent) continue;
            const {x, y} = node.parent, r = placed.sizes.r, from = y + r + (placed.many ? 0 : 34), to = node.y - r - 2, middle = (from + to) / 2;
            const edge = svg('path', {class: 'edge', 'aria-hidden': 'true', d: `M${node.x},${to}C${node.x},${middle} ${x},${middle} ${x},${from}`});
            edges.push(edge);
            (node.parent.host === node.host ? within : between).push(edge);
        }
        const boxes = placed.hosts.map((host) => svg('g', {'aria-hidden': 'true'}, svg('rect', {class: 'host', x: host.left, y: host.top, width: host.width, height: host.height, rx: 8}),
            svg('text', {class: 'host-name', x: host.left + PAD, y: host.top + 15}, cut(host.name, host.width - 2 * PAD, 6.2))));
        root.append(...between, ...boxes, ...within);
        marks = new Map();
        placed.nodes.forEach((node, i) => {
            const group = svg('g', {class: 'node', id: `node-${i}`, role: 'treeitem', transform: `translate(${node.x},${node.y})`});
            root.append(group);
            marks.set(node.name, {group, node, kind: ''});
        });
        drawing.replaceChildren(root);
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
            if (!placed.many) parts.push(svg('text', {class: 'name', y: r + 18}, cut(name, 98, 7)), svg('text', {class: 'sub', y: r + 31}, w ? `${count(w.tokens)} tokens` : ''));
            group.replaceChildren(svg('title', {}, group.getAttribute('aria-label')), ...parts);
        }
        for (const [name, {group, node}] of marks) {
            const w = byName.get(name), kind = w ? stateOf(w)[0] : 'off';
            setAttribute(group, 'class', `node state-${kind}${node.planned ? '' : ' idle'}${name === current ? ' current' : ''}`);
        }
        const steps = page.cluster?.counters?.steps ?? 0;
        for (const edge of edges) setAttribute(edge, 'class', steps > stepsBefore && stepsBefore ? 'edge busy' : 'edge');
        stepsBefore = steps;
    }

    function cut(text, width, letter) {
        const most = Math.max(3, Math.floor(width / letter));
        return text.length > most ? `${text.slice(0, most - 1)}…` : text;
    }

    function choose(name) {
        if (!name || !marks.has(name)) return;
        marks.get(current)?.group.classList.remove('current');
        current = name;
        const {group} = marks.get(name), w = page.workers.find((one) => one.name === name);
        group.classList.add('current');
        drawing.setAttribute('aria-activedescendant', group.id);
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
            if (!plans.length) choice.append(h('option', {value: ''}, 'no plan: no session has tokens'));
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
            placed = layout(page.workers, ranks);
            draw();
        } else {
            paint();
        }
    }
    const redraw = () => update();
    window.addEventListener('redraw', redraw);
    return {update, stop: () => window.removeEventListener('redraw', redraw)};
}
