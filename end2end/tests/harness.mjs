// What the browser tests share: a running demo, a browser, people and small helpers.
// A demo is started once for all files by end2end/tools/browser-tests.mjs; a file run by itself
// starts its own. CHROMIUM names another browser than /usr/bin/chromium.
import { spawn } from 'node:child_process';
import { randomBytes, randomInt } from 'node:crypto';
import { mkdtempSync, readFileSync, renameSync, rmSync, writeFileSync } from 'node:fs';
import { createServer } from 'node:net';
import { tmpdir } from 'node:os';
import { dirname, join, resolve } from 'node:path';
import { fileURLToPath } from 'node:url';
import { chromium } from 'playwright-core';

export const ROOT = resolve(dirname(fileURLToPath(import.meta.url)), '../..');
const DIST = resolve(process.env.DIST || join(ROOT, 'target/dist'));

/** The ports that `freePort` gave. */
const givenPorts = new Set();

/** Another free port each time, below those of outgoing connections, so that none of them gets it meanwhile. */
export function freePort() {
  return new Promise((done) => {
    const attempt = () => {
      const port = randomInt(20_000, 32_000);
      if (givenPorts.has(port)) return void attempt();
      givenPorts.add(port);
      const server = createServer().on('error', attempt);
      server.listen(port, '127.0.0.1', () => server.close(() => done(port)));
    };
    attempt();
  });
}

/** Polls until `found` gives something true; says what it waited for otherwise. */
export async function waitFor(what, found, ms = 20_000) {
  const deadline = Date.now() + ms;
  for (;;) {
    const value = await found();
    if (value) return value;
    if (Date.now() > deadline) throw new Error(`after ${ms} ms still waiting for ${what}`);
    await new Promise((done) => setTimeout(done, 100));
  }
}

/**
 * Starts a program and resolves once its output has `ready`; `stop` ends it and removes `data`. With
 * `stdin` as 'pipe' it is told lines by `tell`.
 */
async function start(argv, env, ready, data, stdin = 'ignore') {
  const child = spawn(argv[0], argv.slice(1), { env: { ...process.env, ...env }, stdio: [stdin, 'pipe', 'pipe'] });
  // One that has ended hears nothing any more; whoever waits for its answer says so.
  child.stdin?.on('error', () => {});
  let output = '';
  let ended = false;
  child.stdout.on('data', (chunk) => (output += chunk));
  child.stderr.on('data', (chunk) => (output += chunk));
  const exit = new Promise((done) => child.on('close', () => done((ended = true))));
  // Whatever becomes of this process, the other one may not stay.
  process.once('exit', () => child.kill('SIGTERM'));
  const end = async () => {
    child.kill('SIGTERM');
    await exit;
  };
  const stop = async () => {
    await end();
    rmSync(data, { recursive: true, force: true });
  };
  try {
    await waitFor(`"${ready}" from ${argv[0]}`, () => {
      if (ended) throw new Error(`${argv.join(' ')} ended:\n${output}`);
      return output.includes(ready);
    }, 90_000);
  } catch (error) {
    await stop();
    throw error;
  }
  return { end, stop, output: () => output, tell: (line) => child.stdin.write(`${line}\n`) };
}

/** A whole demo: what its demo.json says, and `stop`. */
export async function startDemo(more = {}) {
  if (process.env.BERTH_DEMO && !more.FLEET) {
    return { ...JSON.parse(readFileSync(process.env.BERTH_DEMO, 'utf8')), stop: async () => {} };
  }
  const data = mkdtempSync(join(tmpdir(), 'berth-demo-'));
  const env = { ...more, DATA: data };
  for (const port of ['PORT', 'WORKER_PORT', 'INFERENCE_PORT', 'GATEWAY_PORT']) env[port] = `${await freePort()}`;
  const argv = ['python3', join(ROOT, 'end2end/tools/demo.py')];
  const { stop } = await start(argv, env, 'Berth is ready', data);
  const file = join(data, 'demo.json');
  return { ...JSON.parse(readFileSync(file, 'utf8')), file, stop };
}

/**
 * A portal that nobody has set up, of the program that begins `argv`: its addresses, its setup token and `stop`.
 * `halt` ends it without its data, and `resume` starts it again at the same address. `host` is its name for browsers.
 */
async function startPortal(argv, env, stdin, host) {
  const data = mkdtempSync(join(tmpdir(), 'berth-bare-'));
  const [listen, workers] = [`127.0.0.1:${await freePort()}`, `127.0.0.1:${await freePort()}`];
  const where = ['--data', data, '--listen', listen, '--worker-listen', workers, '--web', join(DIST, 'web')];
  const url = `http://${host ? listen.replace('127.0.0.1', host) : listen}`;
  if (host) where.push('--public-url', url);
  const first = await start([...argv, ...where], env, 'Setup token', data, stdin);
  let program = first;
  const token = await waitFor('the setup token', () => /next start: (\S+)\s/.exec(first.output())?.[1]);
  const resume = async () => {
    program = await start([...argv, ...where], env, 'Workers connect to', data, stdin);
  };
  const [halt, stop] = [() => program.end(), () => program.stop()];
  return { ...first, halt, resume, stop, url, workers: `https://${workers}`, data, token };
}

/** A portal that nobody has set up: its address, its setup token and `stop`. `env` are further settings. */
export const startBarePortal = (env = {}, host = undefined) =>
  startPortal([join(DIST, 'berth-portal'), 'serve'], env, 'ignore', host);

/**
 * The same with a clock of its own: `now` is its time in milliseconds, and `forward` moves it by so many
 * seconds and resolves once all that is due then is done. BERTH_CLOCKED names the program.
 */
export async function startClockedPortal(host = undefined) {
  const program = process.env.BERTH_CLOCKED || join(ROOT, 'target/debug/examples/clocked');
  const portal = await startPortal([program], {}, 'pipe', host);
  let ahead_s = 0;
  const forward = async (seconds) => {
    ahead_s += seconds;
    portal.tell(`forward ${seconds}`);
    await waitFor(`the clock to be ${ahead_s} s ahead`, () => {
      const failed = /^failed: .*$/m.exec(portal.output());
      if (failed) throw new Error(failed[0]);
      return portal.output().includes(`moved ${ahead_s}\n`);
    }, 60_000);
  };
  return { ...portal, forward, now: () => Date.now() + ahead_s * 1_000 };
}

/** A portal of the example `large`: `fill` writes a thousand boards and 100,000 jobs for two organizations. */
export async function startLargePortal(program) {
  const portal = await startPortal([program], {}, 'pipe');
  const fill = async (org, other) => {
    portal.tell(`fill ${org} ${other}`);
    await waitFor('the boards and jobs', () => {
      const failed = /^failed: .*$/m.exec(portal.output());
      if (failed) throw new Error(failed[0]);
      return portal.output().includes('filled\n');
    }, 300_000);
  };
  return { ...portal, fill };
}

/**
 * A worker of this machine on simulated boards, which joined a portal; `stop` ends it, and `faults` says what goes
 * wrong with its boards from now on. `terms` are those of its join token.
 */
export async function startWorker(portal, operator, name, fleet, terms = { approve: true, adopt_labels: true }) {
  const data = mkdtempSync(join(tmpdir(), 'berth-worker-'));
  const { secret } = await operator('POST', '/operator/join-tokens', terms);
  const argv = [
    join(DIST, 'berth-worker'), 'run', '--portal', portal.workers, '--data', data, '--hide', portal.data,
    '--name', name, '--simulate', fleet,
    // Jobs run in a sandbox wherever one works; some containers forbid what it is made of.
    '--allow-unisolated',
    // The network of this machine stays as it is.
    '--job-network', 'host',
  ];
  // In the environment, where other people of this machine do not see it.
  const worker = await start(argv, { BERTH_JOIN_TOKEN: secret }, `${name} is node_`, data);
  try {
    const state = terms.approve ? 'ready' : 'awaiting_approval';
    await waitFor(`${name} to be in the state ${state}`, async () => {
      const { items } = await operator('GET', '/operator/nodes');
      return items.some((node) => node.name === name && node.state === state && node.gpus.length > 0);
    });
  } catch (error) {
    await worker.stop();
    throw error;
  }
  const faults = (what) => {
    const boards = join(data, 'simulated-boards');
    // Renamed to its place, so that nothing reads half of it.
    writeFileSync(join(boards, 'next'), JSON.stringify(what));
    renameSync(join(boards, 'next'), join(boards, 'faults.json'));
  };
  return { ...worker, faults };
}

/** Calls the REST interface as whoever the headers say; anything but success is an error. */
export function api(url, headers) {
  return async (method, path, body) => {
    const response = await fetch(`${url}/api/v1${path}`, {
      method,
      headers: { ...headers, ...(body === undefined ? {} : { 'content-type': 'application/json' }) },
      body: body === undefined ? undefined : JSON.stringify(body),
    });
    const text = await response.text();
    if (!response.ok) throw new Error(`${method} ${path}: ${response.status} ${text}`);
    return text ? JSON.parse(text) : null;
  };
}

export const bearer = (url, token) => api(url, { authorization: `Bearer ${token}` });

/** Who somebody new would be; nobody yet. */
export function someone(organization = 'Quayside') {
  const mark = randomBytes(4).toString('hex');
  return {
    name: 'Grace Holm',
    email: `grace-${mark}@example.org`,
    password: `lantern drizzle ${mark} capstan`,
    organization: `${organization} ${mark}`,
  };
}

/** Signs in by REST; gives the headers that say so. */
export async function signIn(url, { email, password }) {
  const response = await fetch(`${url}/api/v1/sessions`, {
    method: 'POST',
    headers: { 'content-type': 'application/json' },
    body: JSON.stringify({ email, password }),
  });
  if (response.status !== 201) throw new Error(`sign-in: ${response.status} ${await response.text()}`);
  return { cookie: response.headers.get('set-cookie').split(';')[0] };
}

/** The address of a page of an organization; of its home without a page. */
export const inOrg = (slug, page = '') => `/orgs/${slug}${page}`;

/** Makes an account by REST: the person, the id and the slug of their organization, and their REST. */
export async function signUp(url, organization) {
  const person = someone(organization);
  const { organization: org } = await api(url, {})('POST', '/sign-up', person);
  const headers = await signIn(url, person);
  return { ...person, org: org.id, slug: org.slug, headers, api: api(url, headers) };
}

/** The job once it is in one of the states. */
export function jobIn(call, org, job, states, ms = 60_000) {
  return waitFor(`${job} to be ${states.join(' or ')}`, async () => {
    const now = await call('GET', `/orgs/${org}/jobs/${job}`);
    return states.includes(now.state) && now;
  }, ms);
}

export const ENDED = ['succeeded', 'failed', 'cancelled', 'timed_out'];

/** Chooses an offering in the launch form: the card of its board model first. */
export async function chooseOffering(page, slug) {
  const model = slug.split('.')[0].toUpperCase();
  await page.locator(`input[name="model"][value="${model}"]`).check();
  await page.locator(`input[name="offering"][value="${slug}"]`).check();
}

/** No tile on any board: every slice was proved clean and given back. */
export function boardsFree(operator) {
  return waitFor('all slices to be free', async () => {
    const { items } = await operator('GET', '/operator/nodes');
    return items.every((node) => node.gpus.every((gpu) => gpu.tiles.length === 0));
  }, 30_000);
}

export function launchBrowser() {
  return chromium.launch({
    executablePath: process.env.CHROMIUM || '/usr/bin/chromium',
    args: [
      '--headless', '--no-sandbox', '--disable-gpu', '--disable-quic', '--no-first-run',
      '--disable-background-networking', '--disable-component-update', '--disable-sync',
      // Most pages use few functions of the module.
      '--js-flags=--wasm-lazy-compilation',
    ],
  });
}

const BROKEN_OFF = /Response body loading was aborted|^TypeError: Failed to fetch\n.*__wasm_split\.js/s;

/** The free pages of each browser, by the settings of their contexts. The first load of a context costs a second. */
const freePages = new WeakMap();

function findFreePages(browser, settings) {
  if (!freePages.has(browser)) freePages.set(browser, new Map());
  const [pages, key] = [freePages.get(browser), JSON.stringify(settings)];
  if (!pages.has(key)) pages.set(key, []);
  return pages.get(key);
}

/** Names of a page with effects that `reset` does not undo. */
const LASTING = new Set([
  'addInitScript', 'clock', 'context', 'exposeBinding', 'exposeFunction', 'on', 'once', 'route', 'routeWebSocket',
  'setExtraHTTPHeaders',
]);

/** Removes the visitor and the input from a page. False if the page cannot be used again. */
async function reset(page, url) {
  try {
    // A page of the same site keeps the process.
    await page.goto(`${url}/healthz`, { timeout: 5_000 });
    await page.evaluate(() => [localStorage, sessionStorage].forEach((storage) => storage.clear()));
    await page.context().clearCookies();
    await page.context().clearPermissions();
    return true;
  } catch {
    return false;
  }
}

/** Gathers the faults of a page, in words. The result ends that. */
function gatherFaults(page, faults) {
  const listeners = {
    console(message) {
      // A page that is left while it loads breaks off its own requests, which is no fault of it.
      if (message.type() !== 'error' || BROKEN_OFF.test(message.text())) return;
      faults.push(`console: ${message.text()} ${message.location().url}`);
    },
    pageerror: (error) => faults.push(`script: ${error.message}`),
    async response(response) {
      const [status, url] = [response.status(), response.url()];
      if (status >= 500) faults.push(`${status} ${url}`);
      if (status < 400) return;
      // Next to the fault of the console: the question and the answer.
      const answer = await response.text().catch(() => '');
      const at = faults.findIndex((fault) => fault.startsWith('console:') && fault.endsWith(url));
      if (at >= 0) faults[at] += ` ${response.request().postData()?.slice(0, 400) ?? ''} -> ${answer.slice(0, 400)}`;
    },
  };
  for (const [event, listener] of Object.entries(listeners)) page.on(event, listener);
  return () => Object.entries(listeners).forEach(([event, listener]) => page.off(event, listener));
}

/**
 * A page with a visitor of its own. `faults` gathers its faults, in words. The page may be one of an earlier visitor,
 * with its cache of files.
 */
export async function openPage(browser, url, options = {}) {
  const { headers, viewport = { width: 1280, height: 720 }, colorScheme = 'light', ...more } = options;
  const settings = { baseURL: url, reducedMotion: 'reduce', timezoneId: 'UTC', ...more };
  const free = findFreePages(browser, settings);
  const page = free.pop() ?? (await (await browser.newContext(settings)).newPage());
  await page.setViewportSize(viewport);
  await page.emulateMedia({ media: null, colorScheme, reducedMotion: settings.reducedMotion });
  if (headers?.cookie) {
    const [name, ...value] = headers.cookie.split('=');
    await page.context().addCookies([{ name, value: value.join('='), url }]);
  }
  const faults = [];
  const ignoreFaults = gatherFaults(page, faults);
  let isLasting = false;
  const watched = new Proxy(page, {
    get(target, name) {
      isLasting ||= LASTING.has(name);
      const value = target[name];
      return typeof value === 'function' ? value.bind(target) : value;
    },
  });
  let isClosed = false;
  const close = async () => {
    // A second close would give the page to two visitors.
    if (isClosed) return;
    isClosed = true;
    ignoreFaults();
    if (!isLasting && (await reset(page, url))) free.push(page);
    else await page.context().close();
  };
  return { page: watched, faults, close };
}

/**
 * Faults of pages without the refusals of quotes that begin within 70 minutes of the browser, as the form suggests: the
 * portal can have passed it, by its moved clock or on a slow machine.
 */
export function withoutLateQuotes(faults) {
  const suggested = Date.now() + 70 * 60_000;
  const startOf = (fault) => Date.parse(/ 422 .*\/quotes .*"starts_at":"([^"]+)"/.exec(fault)?.[1]);
  return faults.filter((fault) => !(startOf(fault) <= suggested));
}

/** The page is drawn, its code has taken over, and nothing is being fetched for it. */
export async function settled(page) {
  await page.locator('h1').first().waitFor();
  await page.evaluate(() => document.fonts.ready);
  // The samples of the gallery wait for nothing.
  await page.waitForFunction(() =>
    [...document.querySelectorAll('.skeleton, [aria-busy="true"]')].every((one) => one.closest('[data-sample]')));
}

/** `$2.41`, `$0.0067`, `$0.149999`: an exact amount of dollars as the pages write it. */
export function moneyText(micros) {
  const size = micros < 0n ? -micros : micros;
  const part = `${size % 1_000_000n}`.padStart(6, '0').replace(/0{1,4}$/, '');
  return `${micros < 0n ? '−' : ''}$${(size / 1_000_000n).toLocaleString('en-US')}.${part}`;
}

/** `$0.30` for 299998 and 300001: money that is set aside, rounded up to the cent except for less than a hundredth of
 * it; below a tenth to two digits. */
export function reservedText(micros) {
  const step = [100n, 1_000n, 10_000n, 100_000n].findIndex((limit) => micros < limit);
  const unit = step < 0 ? 10_000n : 10n ** BigInt(step);
  const over = micros % unit;
  const isExcess = over > 0n && over >= unit / 100n;
  return moneyText(micros - over + (isExcess ? unit : 0n));
}
