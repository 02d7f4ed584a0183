// Limits in the browser: the operator sets one, the tenant sees it and runs into it, asks for more and
// gets it, and everything that was done stands in the record.
import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import {
  bearer, boardsFree, ENDED, inOrg, jobIn, launchBrowser, openPage, settled, signIn, signUp, startDemo, waitFor,
} from './harness.mjs';

// The day on which the run began: it may go over midnight.
const today = new Date().toISOString().slice(0, 10);
// An eighth of a board.
const SLICE = 'h100-80gb.1g.10gb';

let demo, browser, operator, tenant, desk, view;
const jobs = [];

before(async () => {
  demo = await startDemo();
  browser = await launchBrowser();
  operator = bearer(demo.url, demo.operator.token);
  // An organization of its own, so that no limit of it is in the way of other tests.
  tenant = await signUp(demo.url, 'Tidewater');
  await operator('POST', `/operator/orgs/${tenant.org}/credits`, { amount_micros: 20_000_000, memo: 'Welcome' });
  const viewport = { width: 1440, height: 900 };
  desk = await openPage(browser, demo.url, { headers: await signIn(demo.url, demo.operator), viewport });
  view = await openPage(browser, demo.url, { headers: tenant.headers, viewport });
});
after(async () => {
  try {
    for (const id of jobs) {
      const job = await tenant.api('GET', `/orgs/${tenant.org}/jobs/${id}`);
      if (!ENDED.includes(job.state)) await tenant.api('POST', `/orgs/${tenant.org}/jobs/${id}/cancel`);
    }
    if (operator) await boardsFree(operator);
  } finally {
    await browser?.close();
    await demo?.stop();
  }
});

const awake = (button) => button.and(button.page().locator(':enabled')).waitFor();
const button = (where, name) => where.getByRole('button', { name, exact: true });
const textbox = (where, name) => where.getByRole('textbox', { name, exact: true });
const limits = async () => (await tenant.api('GET', `/orgs/${tenant.org}/quota`)).limits;

/** What the tenant's table says of a limit under one of its heads. */
const cell = (name, head) =>
  view.page.getByRole('row').filter({ hasText: name }).first().locator(`[data-label="${head}"]`);

test('the operator limits an organization to an eighth of a board', async () => {
  const { page } = desk;
  await page.goto('/operator/orgs');
  await settled(page);
  await page.getByRole('link', { name: `Limits of ${tenant.organization}` }).click();
  await page.waitForURL(/\/operator\/limits\/org_/);
  await page.getByRole('heading', { level: 1, name: `Limits of ${tenant.organization}` }).waitFor();
  await page.getByText('Default limits apply').waitFor();
  const save = button(page, 'Save limits');
  await awake(save);

  await textbox(page, 'Boards at once').fill('an eighth');
  await save.click();
  assert.match(await page.locator('#own-boards_milli-error').innerText(), /0\.125/);

  await textbox(page, 'Boards at once').fill('0.125');
  await save.click();
  await page.getByText('Saved. The limits apply at once.').waitFor();
  await page.getByText('Own limits apply').waitFor();
  assert.deepEqual(await limits(), { boards_milli: 125 });
});

test('the tenant sees what is used and left', async () => {
  const { page } = view;
  await page.goto(inOrg(tenant.slug, '/limits'));
  await settled(page);
  await page.getByText('Limits set for your organization').waitFor();
  assert.equal(await cell('Boards at once', 'Used').innerText(), '0');
  assert.equal(await cell('Boards at once', 'Maximum').innerText(), '0.125');
  assert.equal(await cell('Boards at once', 'Remaining').innerText(), '0.125');
  await page.getByRole('progressbar', { name: 'Boards at once: 0 % used' }).waitFor();
  assert.equal(await cell('Running jobs', 'Maximum').innerText(), 'no limit');
});

test('a second job waits for the limit and says so', async () => {
  const { page } = view;
  for (const name of ['first', 'second']) {
    const body = { name, offering: SLICE, command: ['sleep', '600'], max_duration_s: 900 };
    jobs.push((await tenant.api('POST', `/orgs/${tenant.org}/jobs`, body)).id);
    if (name === 'first') await jobIn(tenant.api, tenant.org, jobs[0], ['running']);
  }
  const second = await waitFor('the second job to say why', async () => {
    const job = await tenant.api('GET', `/orgs/${tenant.org}/jobs/${jobs[1]}`);
    return job.reasons.length > 0 && job;
  });
  assert.equal(second.state, 'queued');
  await page.goto(inOrg(tenant.slug, `/jobs/${jobs[1]}`));
  await settled(page);
  await page.getByText(/Limit of boards at once: 0\.125\. In use: 0\.125;/).first().waitFor();

  await page.goto(inOrg(tenant.slug));
  await settled(page);
  await page.getByText(/Closest limit: 0\.125 of 0\.125 boards at once/).waitFor();
  await page.getByRole('row').filter({ hasText: 'second' }).filter({ hasText: /boards at once: 0\.125/ }).waitFor();
});

test('the tenant asks for more', async () => {
  const { page } = view;
  await page.getByRole('link', { name: 'All limits' }).click();
  await page.waitForURL(/\/limits$/);
  const ask = button(page, 'Send request');
  await awake(ask);
  // What is limited is what is asked for.
  assert.equal(await page.locator('#ask-limit').inputValue(), 'boards_milli');
  await ask.click();
  await page.locator('#ask-value-error').waitFor();
  await page.locator('#ask-reason-error').waitFor();

  await textbox(page, 'New value').fill('0.25');
  await textbox(page, 'Reason').fill('Two runs side by side until Friday.');
  await ask.click();
  await page.getByText('Sent. The answer appears below.').waitFor();
  await page.getByRole('row').filter({ hasText: 'Boards at once: 0.25' }).filter({ hasText: 'pending' }).waitFor();
});

test('the operator grants it, and the second job starts', async () => {
  const { page } = desk;
  await page.goto('/operator/limits');
  await settled(page);
  const request = page.getByRole('form', { name: `Request of ${tenant.organization}` });
  await awake(button(request, 'Grant'));
  await request.getByText('Two runs side by side until Friday.').waitFor();
  assert.equal(await textbox(request, 'Boards at once').inputValue(), '0.25');
  await textbox(request, 'Note').fill('Until Friday.');
  await button(request, 'Grant').click();
  await page.getByText(`Request of ${tenant.organization} granted.`).waitFor();
  await request.waitFor({ state: 'detached' });
  await jobIn(tenant.api, tenant.org, jobs[1], ['running']);
  assert.deepEqual(await limits(), { boards_milli: 250 });

  await view.page.goto(inOrg(tenant.slug, '/limits'));
  await settled(view.page);
  assert.equal(await cell('Boards at once', 'Used').innerText(), '0.25');
  assert.equal(await cell('Boards at once', 'Remaining').innerText(), '0');
  await view.page.getByRole('row').filter({ hasText: 'granted' }).filter({ hasText: 'Until Friday.' }).waitFor();
});

test('the operator declines what is too much, and nothing changes', async () => {
  const { page } = desk;
  const body = { limits: { boards_milli: 64_000 }, reason: 'All of it, please.' };
  await tenant.api('POST', `/orgs/${tenant.org}/quota-requests`, body);
  await page.goto('/operator/limits');
  await settled(page);
  const request = page.getByRole('form', { name: `Request of ${tenant.organization}` });
  await awake(button(request, 'Decline'));
  await textbox(request, 'Note').fill('There are three boards in all.');
  await button(request, 'Decline').click();
  await page.getByText(`Request of ${tenant.organization} declined.`).waitFor();
  assert.deepEqual(await limits(), { boards_milli: 250 });
});

test('the organization gets the defaults again, after a question', async () => {
  const { page } = desk;
  await page.goto(`/operator/limits/${tenant.org}`);
  await settled(page);
  const back = button(page, 'Restore defaults');
  await awake(back);
  await back.click();
  const dialog = page.getByRole('dialog', { name: 'Restore default limits?' });
  await button(dialog, 'Restore defaults').click();
  await dialog.waitFor({ state: 'hidden' });
  await page.getByText('Default limits restored.').waitFor();
  assert.equal((await tenant.api('GET', `/orgs/${tenant.org}/quota`)).is_default, true);
});

test('all of it stands in the record', async () => {
  const { page } = desk;
  await page.goto('/operator/audit');
  await settled(page);
  const row = (what) => page.getByRole('row').filter({ hasText: what }).first();
  await row('Default limits restored').waitFor();
  await row('Request declined').filter({ hasText: 'There are three boards in all.' }).waitFor();
  await row('Request granted').filter({ hasText: 'Until Friday.' }).waitFor();
  await row('Limits or credit requested').filter({ hasText: tenant.name }).waitFor();
  await page.getByRole('row').filter({ hasText: tenant.org }).filter({ hasText: 'Boards at once: 0.125' }).waitFor();
  const record = row('Default limits restored').locator('details');
  await record.locator('summary').click();
  await record.getByText(/^[0-9a-f]{64}$/).waitFor();
  await record.getByText(/^req_/).waitFor();
  const file = await page.getByRole('link', { name: 'Download NDJSON' }).getAttribute('href');
  const text = await page.evaluate(async (path) => (await fetch(path)).text(), file);
  const actions = text.trim().split('\n').map((line) => JSON.parse(line).action);
  assert.ok(actions.includes('quota.cleared') && actions.includes('session.started'), text.slice(0, 500));

  await page.locator('#audit-action').selectOption({ label: 'Request granted' });
  await page.locator('#audit-since').fill(today);
  await page.getByRole('button', { name: 'Apply filter' }).click();
  await page.waitForURL(/action=quota\.granted/);
  await settled(page);
  await row('Request granted').filter({ hasText: 'Until Friday.' }).waitFor();
  assert.equal(await row('Default limits restored').count(), 0);
  const filtered = await page.getByRole('link', { name: 'Download CSV' }).getAttribute('href');
  assert.match(filtered, /&action=quota\.granted&since=/);
  await page.locator('#audit-actor').fill('Nobody of this name');
  await page.getByRole('button', { name: 'Apply filter' }).click();
  await page.getByText('No entries match.').waitFor();
  await page.getByRole('link', { name: 'Clear filters' }).click();
  await row('Default limits restored').waitFor();
});

test('nothing went wrong in the browser on the way', () => assert.deepEqual([...desk.faults, ...view.faults], []));
