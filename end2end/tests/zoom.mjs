// Pages at 200 % zoom of a window of 1440 by 900 pixels: bars leave the content in sight, and nothing is cut off or
// beyond the edge.
import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { barFindings, cutFindings, widthFindings } from './checks.mjs';
import {
  bearer, boardsFree, inOrg, jobIn, launchBrowser, openPage, settled, signIn, startDemo, waitFor,
} from './harness.mjs';

const ZOOMED = { viewport: { width: 720, height: 450 }, deviceScaleFactor: 2 };
/** The part of the height of the window that bars may cover. */
const SHARE = 0.2;
const SLICE = 'h100-80gb.1g.10gb';

let demo, browser, operator, call, node;
const jobs = {};
const who = {};

before(async () => {
  demo = await startDemo();
  browser = await launchBrowser();
  operator = bearer(demo.url, demo.operator.token);
  call = bearer(demo.url, demo.tenant.token);
  [node] = (await operator('GET', '/operator/nodes')).items;
  const { organization: org } = demo.tenant;
  const submit = async (name, body) =>
    (await call('POST', `/orgs/${org}/jobs`, { name, offering: SLICE, max_duration_s: 900, ...body })).id;
  jobs.running = await submit('a-training-with-a-rather-long-name', { script: 'echo begun; sleep 600' });
  await jobIn(call, org, jobs.running, ['running']);
  jobs.queued = await submit('waits-for-it', { command: ['true'], depends_on: [{ job: jobs.running }] });
  await waitFor('the queued job to say why', async () =>
    (await call('GET', `/orgs/${org}/jobs/${jobs.queued}`)).reasons.length > 0);
  who.tenant = { headers: await signIn(demo.url, demo.tenant), slug: demo.tenant.slug };
  who.operator = { headers: await signIn(demo.url, demo.operator) };
  who.nobody = {};
});

after(async () => {
  try {
    for (const job of [jobs.queued, jobs.running].filter(Boolean)) {
      await call('POST', `/orgs/${demo.tenant.organization}/jobs/${job}/cancel`);
    }
    if (operator) await boardsFree(operator);
  } finally {
    await browser?.close();
    await demo?.stop();
  }
});

// The paths by their visitor; a function for a path with an id in it.
const PAGES = [
  ['nobody', ['/', '/sign-in', '/sign-up']],
  ['tenant', [
    '', '/launch', '/jobs', () => `/jobs/${jobs.running}`, () => `/jobs/${jobs.queued}`, '/reservations', '/cluster',
    '/cluster?view=table', '/volumes', '/billing', '/usage', '/budgets', '/invoices', '/limits', '/team', '/secrets',
    '/tokens', '/webhooks', '/services', '/services/new', '/inference-keys',
  ]],
  ['operator', [
    '/operator', '/operator/nodes', () => `/operator/nodes/${node.id}`, '/operator/fleet', '/operator/jobs',
    '/operator/stuck', '/operator/system', '/operator/reservations', '/operator/prices', '/operator/orgs',
    '/operator/invoices', '/operator/books', '/operator/limits', '/operator/changes', '/operator/audit',
    '/operator/operators', '/operator/settings', '/operator/gateways', '/operator/host-names',
    '/operator/token-prices', '/operator/promises',
  ]],
];

/** The findings at the top, in the middle and at the end of the page: a bar may stick only on the way. */
async function findings(page) {
  const found = [...(await widthFindings(page)), ...(await cutFindings(page))];
  for (const part of [0, 0.5, 1]) {
    await page.evaluate((part) => {
      const { documentElement: root } = document;
      root.scrollTop = part * (root.scrollHeight - window.innerHeight);
      return new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)));
    }, part);
    found.push(...(await barFindings(page, SHARE)).map((text) => `scrolled by ${part}: ${text}`));
  }
  return found;
}

for (const [role, paths] of PAGES) {
  test(`the pages of ${role} can be read at 200 % zoom`, async () => {
    const { headers, slug } = who[role];
    const { page, faults, close } = await openPage(browser, demo.url, { headers, ...ZOOMED });
    const found = [];
    for (const one of paths) {
      const path = typeof one === 'function' ? one() : one;
      await page.goto(slug ? inOrg(slug, path) : path);
      await settled(page);
      found.push(...(await findings(page)).map((text) => `${path}: ${text}`));
    }
    assert.deepEqual(found, []);
    // A visitor's session is asked for and refused.
    assert.deepEqual(faults.filter((fault) => !fault.includes('401')), []);
    await close();
  });
}

test('the launch form and its button are in reach at 200 % zoom', async () => {
  const { headers, slug } = who.tenant;
  const { page, close } = await openPage(browser, demo.url, { headers, ...ZOOMED });
  await page.goto(inOrg(slug, '/launch'));
  const button = page.getByRole('button', { name: 'Launch job' });
  await button.and(page.locator(':enabled')).waitFor();
  for (const field of [page.getByRole('textbox', { name: 'Name', exact: true }), button]) {
    await field.scrollIntoViewIfNeeded();
    const isOnTop = await field.evaluate((element) => {
      const { left, top, width, height } = element.getBoundingClientRect();
      return element.contains(document.elementFromPoint(left + width / 2, top + height / 2));
    });
    assert.ok(isOnTop, 'something covers it');
  }
  await close();
});

test('a dialog fits into the window at 200 % zoom', async () => {
  const { headers, slug } = who.tenant;
  const { page, close } = await openPage(browser, demo.url, { headers, ...ZOOMED });
  await page.goto(inOrg(slug, `/jobs/${jobs.running}`));
  const stop = page.getByRole('button', { name: 'Stop job' });
  await stop.and(page.locator(':enabled')).waitFor();
  await stop.click();
  const dialog = page.getByRole('dialog', { name: /^Stop / });
  await dialog.waitFor();
  const { y, height } = await dialog.boundingBox();
  assert.ok(y >= 0 && y + height <= ZOOMED.viewport.height, `from ${y} px, ${height} px high`);
  await dialog.getByRole('button', { name: 'Keep running' }).click();
  await dialog.waitFor({ state: 'hidden' });
  await close();
});
