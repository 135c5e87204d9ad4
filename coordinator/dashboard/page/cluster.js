// SPDX-License-Identifier: Apache-2.0
// The view of the cluster: the tree, the last events, the workers, the last hour.
import {h} from './dom.js';
import {events} from './events.js';
import {lastHour} from './history.js';
import {tree} from './tree.js';
import {workers} from './workers.js';

export function open(main, page) {
    const left = h('div', {}), right = h('div', {}), below = h('div', {}), hour = h('div', {});
    main.append(h('h1', {class: 'hidden-text'}, 'Cluster'), h('div', {class: 'columns'}, left, right), below, hour);
    const drawn = tree(left, page), listed = workers(below, page), past = lastHour(hour, page), told = events(right, page, {tall: false});
    return {
        update() {
            drawn.update();
            requestAnimationFrame(() => { // two short tasks instead of a long one
                listed.update();
                past.update();
            });
        },
        now: () => told.now(),
        same: () => true,
        stop() {
            told.stop();
            drawn.stop();
            listed.stop();
        },
    };
}
