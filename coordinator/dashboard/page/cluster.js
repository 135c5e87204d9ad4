// SPDX-License-Identifier: Apache-2.0
// The view of the cluster: the tree, the workers, what happened last.
import {h} from './dom.js';
import {events} from './events.js';
import {tree} from './tree.js';
import {workers} from './workers.js';

export function open(main, page) {
    const left = h('div', {}), right = h('div', {}), below = h('div', {});
    main.append(h('h1', {class: 'hidden-text'}, 'Cluster'), h('div', {class: 'columns'}, left, right), below);
    const drawn = tree(left, page), listed = workers(below, page), told = events(right, page, {tall: false});
    return {
        update() {
            drawn.update();
            requestAnimationFrame(() => listed.update()); // two short tasks instead of a long one
        },
        now: () => told.now(),
        same: () => true,
        stop() {
            told.stop();
            drawn.stop();
        },
    };
}
