// What operators do with nodes and jobs of everyone: emptying a node and calling that off, looking for jobs
// and stopping them for a reason that their owner sees, a rack's budget, that nothing is stuck, a board that is
// released, and a node that is declared lost.
import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import {
  api, bearer, boardsFree, inOrg, jobIn, launchBrowser, openPage, settled, signIn, signUp, startBarePortal,
  startWorker, waitFor,
} from './harness.mjs';

const OPERATOR = { name: 'Harbour master', email: 'operator@example.org', password: 'lantern quay seven drizzle' };

let portal, browser, worker, operator, tenant, page, faults;

before(async () => {
  portal = await startBarePortal();
  browser = await launchBrowser();
  await api(portal.url, {})('POST', '/setup', { token: portal.token, ...OPERATOR });
  const headers = await signIn(portal.url, OPERATOR);
  operator = bearer(portal.url, (await api(portal.url, headers)('POST', '/operator/tokens', { name: 'test' })).secret);
  worker = await startWorker(portal, operator, 'pier-9', '1xH100-80GB');
  await operator('POST', '/operator/prices', { offering: 'h100-80gb', per_hour_micros: 3_600_000 });
  tenant = await signUp(portal.url, 'Longshore');
  await operator('POST', `/operator/orgs/${tenant.org}/credits`, { amount_micros: 10_000_000, memo: 'Welcome' });
  ({ page, faults } = await openPage(browser, portal.url, { headers, viewport: { width: 1440, height: 900 } }));
});
after(async () => {
  await browser?.close();
  await worker?.stop();
  await portal?.stop();
});

const awake = (button) => button.and(page.locator(':enabled')).waitFor();
const button = (where, name) => where.getByRole('button', { name, exact: true });
const submit = (name, labels) =>
  tenant.api('POST', `/orgs/${tenant.org}/jobs`, {
    name, offering: 'h100-80gb', script: 'sleep 600', max_duration_s: 900, labels,
  });
const job = (id) => tenant.api('GET', `/orgs/${tenant.org}/jobs/${id}`);

async function open(path) {
  await page.goto(path);
  await settled(page);
}

test('a node is emptied and that is called off', async () => {
  await open('/operator/nodes');
  const actions = page.locator('summary[aria-label="Actions of pier-9"]');
  await actions.click();
  await awake(button(page, 'Drain pier-9'));
  await page.keyboard.press('Escape');
  await button(page, 'Drain pier-9').waitFor({ state: 'hidden' });
  await actions.click();
  await button(page, 'Drain pier-9').click();
  const dialog = page.getByRole('dialog', { name: 'Drain pier-9' });
  await dialog.waitFor();
  // Without a reason the portal refuses, and says so at the field.
  await button(dialog, 'Drain').click();
  await page.locator('#drain-reason-error').waitFor();
  await dialog.getByLabel('Reason').fill('new firmware');
  await button(dialog, 'Drain').click();
  await dialog.waitFor({ state: 'hidden' });
  const banner = page.getByRole('status').filter({ hasText: 'pier-9 is draining' });
  await banner.getByText('No jobs left', { exact: false }).waitFor();
  await banner.getByText('Harbour master: new firmware', { exact: false }).waitFor();
  await page.getByRole('row').filter({ hasText: 'pier-9' }).getByText('draining').waitFor();
  await awake(button(page, 'Cancel drain of pier-9'));
  await button(page, 'Cancel drain of pier-9').click();
  await banner.waitFor({ state: 'detached' });
  const { items } = await operator('GET', '/operator/nodes');
  assert.equal(items[0].state, 'ready');
  // That refusal is the one thing that the browser's console may tell of.
  assert.deepEqual(faults.splice(0).filter((fault) => !fault.includes('422')), []);
});

test('jobs are found by what is chosen, and stopped with a reason', async () => {
  const runs = await submit('runs', { team: 'vision' });
  await jobIn(tenant.api, tenant.org, runs.id, ['running']);
  const waits = await submit('waits', { team: 'sound' });
  await open('/operator/jobs');
  const rows = page.getByRole('table', { name: 'Jobs of all organizations, newest first' }).getByRole('row');
  await rows.filter({ hasText: 'runs' }).filter({ hasText: 'pier-9' }).waitFor();
  await rows.filter({ hasText: 'waits' }).waitFor();
  await page.getByLabel('Label').fill('team=vision');
  await button(page, 'Apply filter').click();
  await page.waitForURL(/label=team%3Dvision/);
  await settled(page);
  await rows.filter({ hasText: 'runs' }).waitFor();
  assert.equal(await rows.filter({ hasText: 'waits' }).count(), 0);
  await awake(button(page, 'Stop matching jobs'));
  await button(page, 'Stop matching jobs').click();
  const dialog = page.getByRole('dialog', { name: 'Stop matching jobs?' });
  await dialog.getByText(`1 job: 1 of ${tenant.organization}.`).waitFor();
  await dialog.getByLabel('Reason').fill('power cut');
  // A further job matches meanwhile: nothing stops, and the dialog counts again.
  const more = await submit('more', { team: 'vision' });
  await button(dialog, 'Stop 1 job').click();
  await dialog.getByText(`2 jobs: 2 of ${tenant.organization}.`).waitFor();
  await dialog.getByText('Nothing was stopped.').waitFor();
  await button(dialog, 'Stop 2 jobs').click();
  await dialog.waitFor({ state: 'hidden' });
  await page.getByText('Stop requested for 2 jobs.').waitFor();
  await jobIn(tenant.api, tenant.org, more.id, ['cancelled']);
  const ended = await jobIn(tenant.api, tenant.org, runs.id, ['cancelled']);
  assert.deepEqual(ended.failure, {
    code: 'operator.stopped', detail: 'Stopped by the operator (Harbour master): power cut.',
  });
  await waitFor('the other one to go on', async () => (await job(waits.id)).state === 'running');
  await tenant.api('POST', `/orgs/${tenant.org}/jobs/${waits.id}/cancel`);
  await boardsFree(operator);
  // The browser's console tells of the refusal.
  assert.deepEqual(faults.splice(0).filter((fault) => !fault.includes('409')), []);
});

test('their owner has the list as a file', async () => {
  const { page: own, close } = await openPage(browser, portal.url, { headers: tenant.headers });
  await own.goto(inOrg(tenant.slug, '/jobs'));
  await settled(own);
  const link = own.getByRole('link', { name: 'Download CSV' });
  const answer = await own.request.get(await link.getAttribute('href'));
  assert.match(await answer.text(), /^id,org,org_name,name,state,/);
  await close();
});

test('the hardware page shows hosts, and a rack gets a budget', async () => {
  await open('/operator/fleet');
  await page.getByText('1 host, no differences').waitFor();
  await awake(button(page, 'Set budget'));
  await page.getByLabel('Rack', { exact: true }).fill('r12');
  await page.getByLabel('Budget in watts').fill('a lot');
  await button(page, 'Set budget').click();
  await page.getByText('Enter whole watts, such as 20000.').waitFor();
  await page.getByLabel('Budget in watts').fill('20000');
  await button(page, 'Set budget').click();
  const row = page.getByRole('row').filter({ hasText: 'r12' });
  await row.getByText('0 W of 20.0 kW').waitFor();
  await awake(button(page, 'Remove budget of r12'));
  await button(page, 'Remove budget of r12').click();
  await row.waitFor({ state: 'detached' });
  assert.deepEqual(faults.splice(0), []);
});

test('the hardware page refreshes, and the button of a rack keeps the focus', async () => {
  await operator('PUT', '/operator/racks/r12', { budget_watts: 20_000 });
  const headers = await signIn(portal.url, OPERATOR);
  const { page: own, faults: found, close } = await openPage(browser, portal.url, { headers });
  await own.clock.install();
  await own.goto('/operator/fleet');
  const remove = button(own, 'Remove budget of r12');
  await remove.and(own.locator(':enabled')).waitFor();
  await remove.focus();
  await operator('PUT', '/operator/racks/r12', { budget_watts: 30_000 });
  await own.clock.runFor(11_000);
  await own.getByRole('row').filter({ hasText: 'r12' }).getByText('0 W of 30.0 kW').waitFor();
  await remove.and(own.locator(':focus')).waitFor();
  await operator('DELETE', '/operator/racks/r12');
  await own.clock.runFor(11_000);
  await remove.waitFor({ state: 'detached' });
  assert.deepEqual(found, []);
  await close();
});

test('nothing needs attention, and somebody else finds none of these pages', async () => {
  await open('/operator/stuck');
  await page.getByText('Nothing needs attention.', { exact: false }).waitFor();
  const { page: own, close } = await openPage(browser, portal.url, { headers: tenant.headers });
  for (const path of ['/operator/stuck', '/operator/fleet', '/operator/jobs']) {
    const answer = await own.goto(path);
    assert.equal(answer.status(), 404, path);
  }
  await close();
});

test('old prices follow page by page', async () => {
  for (let n = 1; n <= 50; n += 1) {
    await operator('POST', '/operator/prices', { offering: 'h100-80gb', per_hour_micros: 3_600_000 + n });
  }
  await open('/operator/prices');
  await awake(button(page, 'Change price of h100-80gb'));
  await page.locator('summary').filter({ hasText: /^h100-80gb$/ }).click();
  const rows = page.getByRole('table', { name: 'Versions of the price, newest first' }).getByRole('row');
  // With the row of the heads.
  await waitFor('the first page', async () => (await rows.count()) === 51);
  await button(page, 'Load more').click();
  await waitFor('the first version', async () => (await rows.count()) === 52);
  await button(page, 'Load more').waitFor({ state: 'detached' });
  assert.deepEqual(faults.splice(0), []);
});

test('a board that failed is released after a question', async () => {
  const [node] = (await operator('GET', '/operator/nodes')).items;
  const board = async () => (await operator('GET', `/operator/nodes/${node.id}/gpus`)).items[0];
  const { uuid } = await board();
  worker.faults({ xid: [{ gpu: uuid, xid: 48, at: 1 }] });
  await waitFor('the board to be out of service', async () => (await board()).quarantine);
  worker.faults({});
  await open(`/operator/nodes/${node.id}`);
  await page.getByText('Out of service', { exact: true }).waitFor();
  const release = button(page, 'Release GPU 0');
  await awake(release);
  await release.click();
  const dialog = page.getByRole('dialog', { name: 'Release GPU 0?' });
  await button(dialog, 'Cancel').click();
  await dialog.waitFor({ state: 'hidden' });
  assert.ok((await board()).quarantine);
  await release.click();
  await button(dialog, 'Release').click();
  await dialog.waitFor({ state: 'hidden' });
  await page.getByText('Out of service', { exact: true }).waitFor({ state: 'detached' });
  assert.ok(!(await board()).quarantine);
  assert.deepEqual(faults.splice(0), []);
});

// The last one: its worker is gone afterwards.
test('a node that is gone is declared lost in the dialog', async () => {
  // What is left of it without its worker ends by itself soon.
  const spec = { name: 'gone-with-it', offering: 'h100-80gb', script: 'exec sleep 60', max_duration_s: 900, lease_s: 60 };
  const job = await tenant.api('POST', `/orgs/${tenant.org}/jobs`, spec);
  await jobIn(tenant.api, tenant.org, job.id, ['running']);
  await worker.stop();
  worker = undefined;
  await open('/operator/nodes');
  const silent = page.getByRole('alert').filter({ hasText: 'pier-9 is not connected' });
  await silent.getByText('1 attempt may still run on this node', { exact: false }).waitFor();
  await awake(button(silent, 'Declare pier-9 lost'));
  await button(silent, 'Declare pier-9 lost').click();
  const dialog = page.getByRole('dialog', { name: 'Declare pier-9 lost?' });
  await button(dialog, 'Wait').click();
  await dialog.waitFor({ state: 'hidden' });
  await button(silent, 'Declare pier-9 lost').click();
  await button(dialog, 'Declare lost').click();
  await dialog.waitFor({ state: 'hidden' });
  await page.getByRole('alert').filter({ hasText: 'pier-9 is lost' }).waitFor();
  const ended = await jobIn(tenant.api, tenant.org, job.id, ['failed']);
  assert.equal(ended.failure.code, 'node.lost');
  assert.deepEqual(faults.splice(0), []);
});
