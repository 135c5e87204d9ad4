// SPDX-License-Identifier: Apache-2.0
// Requests to the coordinator that serves this page, and to no one else.

const KEY = 'banyan-token';
const TIMEOUT_MS = 8000;
const BUSY_MS = 300, BUSY_TRIES = 20;

export class ApiError extends Error {
    constructor(status, message) {
        super(message);
        this.status = status; // 0: no answer
    }
}

export function setToken(token) {
    sessionStorage.setItem(KEY, token);
}
export function dropToken() {
    sessionStorage.removeItem(KEY);
}
export const hasToken = () => sessionStorage.getItem(KEY) !== null;

// The answer, or an ApiError. What is too much for the coordinator now (429) is asked again, while it is wanted().
export async function ask(path, query = {}, wanted = () => true) {
    for (let tries = 1; ; tries++) {
        try {
            return await askOnce(path, query);
        } catch (error) {
            if (error.status !== 429 || tries === BUSY_TRIES || !wanted()) throw error;
        }
        await new Promise((resolve) => setTimeout(resolve, BUSY_MS));
    }
}

// A header's characters are bytes: the token's of UTF-8.
const bearer = (token) => `Bearer ${String.fromCharCode(...new TextEncoder().encode(token))}`;

async function askOnce(path, query) {
    const words = new URLSearchParams(query).toString(), token = sessionStorage.getItem(KEY);
    let response, body;
    try {
        response = await fetch(`api/v1/${path}${words ? `?${words}` : ''}`, {
            headers: {'X-Banyan': '1', ...(token === null ? {} : {Authorization: bearer(token)})},
            cache: 'no-store', credentials: 'omit', redirect: 'error', signal: AbortSignal.timeout(TIMEOUT_MS),
        });
        body = await response.json();
    } catch (error) {
        throw new ApiError(0, response ? 'the answer is incomplete' : 'no answer');
    }
    if (response.status === 401) {
        const now = sessionStorage.getItem(KEY);
        if (now !== token) return askOnce(path, query); // it was given while this was on its way
        dropToken(); // a wrong one is a refusal that the coordinator reports: once is enough
    }
    if (!response.ok) throw new ApiError(response.status, body.error || `HTTP ${response.status}`);
    return body;
}

// Calls `work` now and every `ms`, one after the other, while the page is visible; slower while it fails. stop() ends it,
// now() does it at once.
export function poll(work, ms) {
    let timer = 0, busy = false, stopped = false, failures = 0, again = false;
    async function run() {
        clearTimeout(timer);
        if (stopped || document.hidden) return;
        if (busy) {
            again = true;
            return;
        }
        busy = true;
        try {
            await work();
            failures = 0;
        } catch {
            failures++; // `work` has said so
        }
        busy = false;
        if (again) {
            again = false;
            run();
        } else if (!stopped) {
            timer = setTimeout(run, Math.min(ms * 2 ** Math.min(failures, 3), 10000));
        }
    }
    document.addEventListener('visibilitychange', run);
    run();
    return {
        now: run,
        stop() {
            stopped = true;
            clearTimeout(timer);
            document.removeEventListener('visibilitychange', run);
        },
    };
}
