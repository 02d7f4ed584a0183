// Every screen, at a desk and in a hand, by day and by night: drawn without errors, nothing wider
// than the window, nothing that axe calls serious. The pictures are in target/screens.
import assert from 'node:assert/strict';
import { mkdirSync, readFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { join } from 'node:path';
import { after, before, test } from 'node:test';
import {
  bearer, boardsFree, jobIn, launchBrowser, openPage, ROOT, settled, signIn, signUp, startBarePortal, startDemo, waitFor,
} from './harness.mjs';

const AXE = readFileSync(createRequire(import.meta.url).resolve('axe-core/axe.min.js'), 'utf8');
const SHOTS = join(ROOT, 'target/screens');
const SLICE = 'h100-80gb.1g.10gb';
const VARIANTS = [
  { width: 1440, height: 900, colorScheme: 'light' },
  { width: 1440, height: 900, colorScheme: 'dark' },
  { width: 390, height: 844, colorScheme: 'light' },
  { width: 390, height: 844, colorScheme: 'dark' },
];

let demo, browser, bare;
const jobs = {};
const who = {};

async function submit(call, org, body) {
  const job = await call('POST', `/orgs/${org}/jobs`, { offering: SLICE, max_duration_s: 900, ...body });
  return job.id;
}

before(async () => {
  mkdirSync(SHOTS, { recursive: true });
  demo = await startDemo();
  browser = await launchBrowser();
  bare = await startBarePortal();
  const { organization: org } = demo.tenant;
  const call = bearer(demo.url, demo.tenant.token);
  const digits = (file) => readFileSync(join(ROOT, 'examples/digits', file), 'utf8');
  const files = { 'train.py': digits('train.py'), 'digits.csv': digits('digits.csv') };
  jobs.succeeded = await submit(call, org, { name: 'digits', command: ['python3', 'train.py', '--epochs', '8'], files });
  jobs.failed = await submit(call, org, { name: 'sweep-03', command: ['sh', '-c', 'echo no such data; exit 3'] });
  await jobIn(call, org, jobs.succeeded, ['succeeded']);
  await jobIn(call, org, jobs.failed, ['failed']);
  jobs.running = await submit(call, org, { name: 'digits-long', command: ['python3', 'train.py', '--epochs', '9000'], files });
  await jobIn(call, org, jobs.running, ['running']);
  // The first holds a slice of one board, so that both whole boards are not free for this one.
  jobs.queued = await submit(call, org, { name: 'big-batch', offering: 'h100-80gb', count: 2, command: ['true'] });
  await waitFor('the queued job to say why', async () =>
    (await call('GET', `/orgs/${org}/jobs/${jobs.queued}`)).reasons.length > 0);
  who.tenant = { url: demo.url, headers: await signIn(demo.url, demo.tenant) };
  who.operator = { url: demo.url, headers: await signIn(demo.url, demo.operator) };
  who.newcomer = { url: demo.url, headers: (await signUp(demo.url)).headers };
  who.nobody = { url: demo.url };
  who.first = { url: bare.url };
});

after(async () => {
  try {
    const call = bearer(demo.url, demo.tenant.token);
    for (const job of [jobs.queued, jobs.running].filter(Boolean)) {
      await call('POST', `/orgs/${demo.tenant.organization}/jobs/${job}/cancel`);
    }
    await boardsFree(bearer(demo.url, demo.operator.token));
  } finally {
    await browser?.close();
    await bare?.stop();
    await demo?.stop();
  }
});

// Name of the picture, who looks, and the path; a function where the path has an id in it.
const SCREENS = [
  ['setup', 'first', '/setup'],
  ['sign-in', 'nobody', '/sign-in'],
  ['sign-up', 'nobody', '/sign-up'],
  ['not-found', 'nobody', '/no/such/page'],
  ['home', 'tenant', '/'],
  ['home-empty', 'newcomer', '/'],
  ['launch', 'tenant', '/launch'],
  ['jobs', 'tenant', '/jobs'],
  ['jobs-empty', 'newcomer', '/jobs'],
  ['job-running', 'tenant', () => `/jobs/${jobs.running}`],
  ['job-queued', 'tenant', () => `/jobs/${jobs.queued}`],
  ['job-succeeded', 'tenant', () => `/jobs/${jobs.succeeded}`],
  ['job-failed', 'tenant', () => `/jobs/${jobs.failed}`],
  ['cluster', 'tenant', '/cluster'],
  ['billing', 'tenant', '/billing'],
  ['billing-empty', 'newcomer', '/billing'],
  ['tokens', 'tenant', '/tokens'],
  ['operator-nodes', 'operator', '/operator/nodes'],
  ['operator-prices', 'operator', '/operator/prices'],
  ['operator-orgs', 'operator', '/operator/orgs'],
];

/** What is wrong with the page as it stands, in words. */
async function wrongs(page) {
  const wide = await page.evaluate(() => {
    const root = document.documentElement;
    if (root.scrollWidth <= window.innerWidth) return null;
    const out = [...document.body.querySelectorAll('*')].filter((e) => e.getBoundingClientRect().right > window.innerWidth + 1);
    return `${root.scrollWidth} px wide in ${window.innerWidth}: ${out.slice(0, 3).map((e) => `${e.localName}.${e.className}`)}`;
  });
  await page.evaluate(AXE);
  const broken = await page.evaluate(async () => {
    const { violations } = await window.axe.run(document, { resultTypes: ['violations'] });
    return violations
      .filter((v) => v.impact === 'serious' || v.impact === 'critical')
      .map((v) => `axe ${v.id}: ${v.nodes.slice(0, 3).map((n) => n.target.join(' ')).join(', ')}`);
  });
  return [...(wide ? [wide] : []), ...broken];
}

for (const [name, role, where] of SCREENS) {
  test(`${name} holds at both widths, by day and by night`, async () => {
    const found = [];
    for (const { width, height, colorScheme } of VARIANTS) {
      const { url, headers } = who[role];
      const { page, faults, close } = await openPage(browser, url, { headers, viewport: { width, height }, colorScheme });
      try {
        await page.goto(typeof where === 'function' ? where() : where);
        await settled(page);
        // A live page is looked at with something in it.
        if (name === 'job-running') await page.waitForTimeout(2_500);
        await page.screenshot({ path: join(SHOTS, `${name}-${width}-${colorScheme}.png`), fullPage: true });
        const expected = (fault) => name === 'not-found' && fault.includes('404');
        const all = [...faults.filter((fault) => !expected(fault)), ...(await wrongs(page))];
        found.push(...all.map((text) => `${width} ${colorScheme}: ${text}`));
      } catch (error) {
        found.push(`${width} ${colorScheme}: ${error.message}`);
      } finally {
        await close();
      }
    }
    assert.deepEqual(found, []);
  });
}
