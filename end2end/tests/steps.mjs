// The steps to common goals, counted: clicks, fields and opened pages, as docs/steps.md has them.
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { after, before, test } from 'node:test';
import { axeFindings } from './checks.mjs';
import {
  api, bearer, boardsFree, inOrg, jobIn, launchBrowser, openPage, ROOT, settled, signIn, signUp, startBarePortal,
  startWorker, waitFor, withoutLateQuotes,
} from './harness.mjs';

const OPERATOR = { name: 'Harbour master', email: 'operator@example.org', password: 'lantern quay seven drizzle' };
const BOARD = 'h100-80gb';
const DAY_MS = 86_400_000;

let portal, browser, worker, operator, headers, tenant;

before(async () => {
  portal = await startBarePortal();
  browser = await launchBrowser();
  await api(portal.url, {})('POST', '/setup', { token: portal.token, ...OPERATOR });
  headers = await signIn(portal.url, OPERATOR);
  operator = bearer(portal.url, (await api(portal.url, headers)('POST', '/operator/tokens', { name: 'test' })).secret);
  worker = await startWorker(portal, operator, 'pier-9', '8xH100-80GB');
  await operator('POST', '/operator/prices', { offering: BOARD, per_hour_micros: 3_600_000 });
  tenant = await signUp(portal.url, 'Longshore');
  await operator('POST', `/operator/orgs/${tenant.org}/credits`, { amount_micros: 20_000_000_000, memo: 'Welcome' });
});
after(async () => {
  await browser?.close();
  await worker?.stop();
  await portal?.stop();
});

const submit = (name, body) =>
  tenant.api('POST', `/orgs/${tenant.org}/jobs`, { name, offering: BOARD, max_duration_s: 900, ...body });
const cancel = (job) => tenant.api('POST', `/orgs/${tenant.org}/jobs/${job}/cancel`);
const button = (page, name) => page.getByRole('button', { name }).and(page.locator(':enabled'));
const address = (url) => `${new URL(url).pathname}${new URL(url).search}`;

/** The counts of a goal in docs/steps.md: clicks, fields, pages. */
function documented(goal) {
  const text = readFileSync(join(ROOT, 'docs/steps.md'), 'utf8');
  const row = text.split('\n').find((line) => line.startsWith(`| ${goal} |`));
  assert.ok(row, `docs/steps.md has no row of "${goal}"`);
  const [clicks, fields, pages] = row.split('|').slice(2, 5).map(Number);
  return { clicks, fields, pages };
}

/** Does the steps of a goal from the first page of a person, and compares their number. */
async function counted(goal, session, start, steps) {
  const { page, faults, close } = await openPage(browser, portal.url, {
    headers: session, viewport: { width: 1440, height: 900 }, timezoneId: 'UTC', locale: 'en-US',
  });
  await page.goto(start);
  await settled(page);
  // The page is awake.
  await button(page, 'Sign out').first().waitFor();
  const count = { clicks: 0, fields: 0, pages: 0 };
  let here = address(page.url());
  page.on('framenavigated', (frame) => {
    if (frame !== page.mainFrame() || address(frame.url()) === here) return;
    here = address(frame.url());
    count.pages += 1;
  });
  const click = async (locator) => {
    await locator.click();
    count.clicks += 1;
  };
  const fill = async (locator, text) => {
    await locator.fill(text);
    count.fields += 1;
  };
  await steps({ page, click, fill });
  assert.deepEqual(count, documented(goal));
  assert.deepEqual(withoutLateQuotes(faults), []);
  await close();
}

const home = () => inOrg(tenant.slug);
const rail = (page, name) => page.getByRole('navigation', { name: 'Main' }).getByRole('link', { name, exact: true });

test('launching a job', async () => {
  await counted('Launch a job', tenant.headers, home(), async ({ page, click, fill }) => {
    await click(rail(page, 'Launch'));
    await button(page, 'Launch job').waitFor();
    await fill(page.getByRole('textbox', { name: 'Name', exact: true }), 'counted');
    await fill(page.getByRole('textbox', { name: 'Command', exact: true }), 'sleep 600');
    await click(button(page, 'Launch job'));
    await page.waitForURL(/\/jobs\/job_/);
    const [job] = /job_[0-9a-z]+/.exec(page.url());
    await jobIn(tenant.api, tenant.org, job, ['running']);
    await cancel(job);
  });
  await boardsFree(operator);
});

test('finding why a job waits', async () => {
  const first = await submit('holds', { script: 'sleep 600' });
  const second = await submit('waits', { script: 'true', count: 8 });
  await waitFor('its reason', async () =>
    (await tenant.api('GET', `/orgs/${tenant.org}/jobs/${second.id}`)).reasons.length > 0);
  await counted('Find why a job waits', tenant.headers, home(), async ({ page, click }) => {
    await click(page.getByRole('link', { name: 'waits', exact: true }));
    await page.waitForURL(/\/jobs\/job_/);
    const why = page.getByRole('region', { name: 'Why this job waits' });
    await waitFor('the first reason', async () => {
      const { blockers: [first] } = await tenant.api('GET', `/orgs/${tenant.org}/jobs/${second.id}/explanation`);
      return first && (await why.locator('.why__lead').filter({ hasText: first.detail }).count()) === 1;
    });
  });
  for (const { id } of [second, first]) await cancel(id);
  await boardsFree(operator);
});

test('stopping one job', async () => {
  const { id } = await submit('stops', { script: 'sleep 600' });
  await jobIn(tenant.api, tenant.org, id, ['running']);
  await counted('Stop one job', tenant.headers, home(), async ({ page, click }) => {
    await click(page.getByRole('link', { name: 'stops', exact: true }));
    await page.waitForURL(/\/jobs\/job_/);
    await click(button(page, 'Stop job'));
    const dialog = page.getByRole('dialog', { name: 'Stop stops?' });
    await click(dialog.getByRole('button', { name: 'Stop job' }));
    await dialog.waitFor({ state: 'hidden' });
  });
  await jobIn(tenant.api, tenant.org, id, ['cancelled']);
  await boardsFree(operator);
});

test('stopping everything of a project as an operator', async () => {
  const made = [];
  for (const name of ['one', 'two']) made.push(await submit(name, { script: 'sleep 600', labels: { project: 'ocr' } }));
  for (const { id } of made) await jobIn(tenant.api, tenant.org, id, ['running']);
  await counted('Stop everything of a project, as operator', headers, '/operator', async ({ page, click, fill }) => {
    await click(rail(page, 'All jobs'));
    await page.waitForURL((url) => url.pathname === '/operator/jobs');
    await fill(page.getByLabel('Label', { exact: true }), 'project=ocr');
    await click(button(page, 'Apply filter'));
    await page.waitForURL(/label=project%3Docr/);
    await click(button(page, 'Stop matching jobs'));
    const dialog = page.getByRole('dialog', { name: 'Stop matching jobs?' });
    await fill(dialog.getByLabel('Reason'), 'project closed');
    await click(dialog.getByRole('button', { name: 'Stop 2 jobs' }));
    await dialog.waitFor({ state: 'hidden' });
  });
  for (const { id } of made) await jobIn(tenant.api, tenant.org, id, ['cancelled']);
  await boardsFree(operator);
});

test('stopping everything of a project as a member', async () => {
  const made = [];
  for (const name of ['ocr-a', 'ocr-b']) made.push(await submit(name, { script: 'sleep 600', labels: { project: 'ocr' } }));
  const other = await submit('other', { script: 'sleep 600' });
  for (const { id } of [...made, other]) await jobIn(tenant.api, tenant.org, id, ['running']);
  await counted('Stop everything of a project', tenant.headers, home(), async ({ page, click, fill }) => {
    await click(rail(page, 'Jobs'));
    await page.waitForURL(/\/jobs$/);
    await button(page, 'Stop all jobs').waitFor();
    await fill(page.getByLabel('Label', { exact: true }), 'project=ocr');
    await click(button(page, 'Apply filter'));
    await page.waitForURL(/label=project%3Docr/);
    await click(button(page, 'Stop matching jobs'));
    const dialog = page.getByRole('dialog', { name: 'Stop matching jobs?' });
    await dialog.getByText('2 jobs.', { exact: true }).waitFor();
    assert.equal(await dialog.getByLabel('Reason').count(), 0);
    assert.deepEqual(await axeFindings(page), []);
    await click(dialog.getByRole('button', { name: 'Stop 2 jobs' }));
    await dialog.waitFor({ state: 'hidden' });
    await page.getByText('Stop requested for 2 jobs.').waitFor();
    // The list follows without another load.
    const rows = page.getByRole('table', { name: 'Jobs', exact: true }).getByRole('row');
    for (const name of ['ocr-a', 'ocr-b']) await rows.filter({ hasText: name }).filter({ hasText: 'cancelled' }).waitFor();
  });
  for (const { id } of made) await jobIn(tenant.api, tenant.org, id, ['cancelled']);
  assert.equal((await tenant.api('GET', `/orgs/${tenant.org}/jobs/${other.id}`)).state, 'running');
  await cancel(other.id);
  await boardsFree(operator);
});

test('pricing a week of eight boards', async () => {
  const now = Date.now();
  const at = (days) => new Date(now + days * DAY_MS).toISOString().slice(0, 16);
  await counted('Price a week of eight boards', tenant.headers, home(), async ({ page, click, fill }) => {
    await click(rail(page, 'Reservations'));
    await page.waitForURL(/\/reservations$/);
    const start = page.getByLabel('Start', { exact: true });
    // The browser suggests a time once the form is awake.
    await waitFor('the suggested time', async () => (await start.inputValue()) !== '');
    // The end first: an end before its start would be refused.
    await fill(page.getByLabel('End', { exact: true }), at(8));
    await fill(start, at(1));
    await fill(page.getByRole('spinbutton', { name: 'Devices' }), '8');
    // $3.60 an hour for 8 boards and 168 hours.
    await page.getByRole('button', { name: 'Reserve for $4,838.40' }).waitFor();
  });
});

// The last one: its board stays out of service.
test('finding the board that failed', async () => {
  const [node] = (await operator('GET', '/operator/nodes')).items;
  const boards = async () => (await operator('GET', `/operator/nodes/${node.id}/gpus`)).items;
  const failed = (await boards())[3];
  worker.faults({ xid: [{ gpu: failed.uuid, xid: 48, at: 1 }] });
  await waitFor('the board to be out of service', async () => (await boards())[3].quarantine);
  await counted('Find the board that failed', headers, '/operator', async ({ page, click }) => {
    const title = `GPU ${failed.index} of pier-9`;
    await click(page.getByRole('list', { name: 'Findings' }).getByRole('link', { name: `${title} out of service` }));
    await page.getByRole('heading', { level: 1, name: title, exact: true }).waitFor();
  });
});
