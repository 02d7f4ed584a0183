// The page of one board: charts without a job, the jobs on it, and the way from the overview to a board that failed.
import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { axeFindings } from './checks.mjs';
import {
  api, bearer, jobIn, launchBrowser, openPage, settled, signIn, signUp, startBarePortal, startWorker, waitFor,
} from './harness.mjs';

const OPERATOR = { name: 'Harbour master', email: 'operator@example.org', password: 'lantern quay seven drizzle' };
const SIZES = [{ width: 1440, height: 900 }, { width: 390, height: 844 }];
const QUANTITIES = ['Utilization', 'Memory', 'Power', 'Temperature'];

let portal, browser, worker, operator, tenant, headers, node, gpu, path;

before(async () => {
  portal = await startBarePortal();
  browser = await launchBrowser();
  await api(portal.url, {})('POST', '/setup', { token: portal.token, ...OPERATOR });
  headers = await signIn(portal.url, OPERATOR);
  operator = bearer(portal.url, (await api(portal.url, headers)('POST', '/operator/tokens', { name: 'test' })).secret);
  worker = await startWorker(portal, operator, 'pier-9', '1xH100-80GB');
  await operator('POST', '/operator/prices', { offering: 'h100-80gb', per_hour_micros: 3_600_000 });
  tenant = await signUp(portal.url, 'Longshore');
  await operator('POST', `/operator/orgs/${tenant.org}/credits`, { amount_micros: 90_000_000, memo: 'Welcome' });
  [node] = (await operator('GET', '/operator/nodes')).items;
  gpu = node.gpus[0].uuid;
  path = `/operator/nodes/${node.id}/boards/${gpu}`;
  await waitFor('readings of the board', async () => (await samples()).power_watts.some((watts) => watts !== null));
});
after(async () => {
  await browser?.close();
  await worker?.stop();
  await portal?.stop();
});

const samples = () => operator('GET', `/operator/nodes/${node.id}/gpus/${gpu}/samples`);
const chart = (page, name) => page.getByRole('region', { name, exact: true });

test('a board without a job has charts at both widths', async () => {
  for (const viewport of SIZES) {
    const { page, faults, close } = await openPage(browser, portal.url, { headers, viewport });
    await page.goto(`/operator/nodes/${node.id}`);
    await settled(page);
    await page.getByRole('link', { name: 'GPU 0 ·' }).click();
    await page.getByRole('heading', { level: 1, name: 'GPU 0 of pier-9' }).waitFor();
    for (const name of QUANTITIES) {
      await chart(page, name).locator('canvas').waitFor();
    }
    await chart(page, 'Power').locator('.chart__values').getByText(/\d+ W/).waitFor();
    await page.getByText('No jobs on this board in the last 24 hours.').waitFor();
    await page.getByRole('radiogroup', { name: 'Shown time' }).getByText('24 h').click();
    await page.getByRole('radio', { name: '24 h' }).and(page.locator(':checked')).waitFor({ state: 'attached' });
    const wide = await page.evaluate(() => document.documentElement.scrollWidth - window.innerWidth);
    assert.ok(wide <= 0, `${wide} px too wide at ${viewport.width}`);
    assert.deepEqual(await axeFindings(page), []);
    assert.deepEqual(faults, []);
    await close();
  }
});

test('a board of another node or without a name is not found, nor is it for a tenant', async () => {
  const { page, close } = await openPage(browser, portal.url, { headers, viewport: SIZES[0] });
  assert.equal((await page.goto(`/operator/nodes/${node.id}/boards/GPU-none`)).status(), 404);
  await close();
  const other = await openPage(browser, portal.url, { headers: tenant.headers, viewport: SIZES[0] });
  assert.equal((await other.page.goto(path)).status(), 404);
  await other.close();
});

test('a job on the board is listed beside its charts', async () => {
  const job = await tenant.api('POST', `/orgs/${tenant.org}/jobs`, {
    name: 'train-7', offering: 'h100-80gb', script: 'exec sleep 600', max_duration_s: 900,
  });
  await jobIn(tenant.api, tenant.org, job.id, ['running']);
  const { page, faults, close } = await openPage(browser, portal.url, { headers, viewport: SIZES[0] });
  await page.goto(path);
  await settled(page);
  const row = page.getByRole('table', { name: 'Jobs on this board, newest first' }).getByRole('row').filter({ hasText: 'train-7' });
  await row.getByText('in use now').waitFor();
  await tenant.api('POST', `/orgs/${tenant.org}/jobs/${job.id}/cancel`);
  // The page follows by itself.
  await row.getByText('in use now').waitFor({ state: 'detached' });
  await row.getByRole('link', { name: `Jobs of ${tenant.organization} on this node` }).click();
  await page.getByRole('heading', { level: 1, name: 'All jobs' }).waitFor();
  assert.deepEqual(faults, []);
  await close();
});

test('a board that failed is one step from the overview, and its page has the next step', async () => {
  for (const [n, viewport] of SIZES.entries()) {
    worker.faults({ xid: [{ gpu, xid: 48, at: n + 1 }] });
    const board = async () => (await operator('GET', `/operator/nodes/${node.id}/gpus`)).items[0];
    await waitFor('the board to be out of service', async () => (await board()).quarantine);
    worker.faults({});
    const { page, faults, close } = await openPage(browser, portal.url, { headers, viewport });
    await page.goto('/operator');
    await settled(page);
    const finding = page.getByRole('list', { name: 'Findings' }).getByRole('listitem').filter({ hasText: 'GPU 0 of pier-9' });
    await finding.getByText('XID 48', { exact: false }).waitFor();
    await finding.getByRole('link', { name: 'GPU 0 of pier-9 out of service' }).click();
    await page.getByRole('heading', { level: 1, name: 'GPU 0 of pier-9' }).waitFor();
    const banner = page.getByRole('status').filter({ hasText: 'Out of service' });
    await banner.getByText('XID 48', { exact: false }).waitFor();
    await banner.getByText('Reset the board. The reset waits for the end of its jobs', { exact: false }).waitFor();
    const events = page.getByRole('table', { name: 'Latest events of the board and its node, newest first' });
    await events.getByText('Board put out of service').first().waitFor();
    assert.deepEqual(await axeFindings(page), []);
    await page.getByRole('button', { name: 'Release GPU 0' }).and(page.locator(':enabled')).click();
    const dialog = page.getByRole('dialog', { name: 'Release GPU 0?' });
    await dialog.getByRole('button', { name: 'Release' }).click();
    await banner.waitFor({ state: 'detached' });
    await page.getByText('healthy', { exact: true }).waitFor();
    assert.deepEqual(faults, []);
    await close();
  }
});

test('a board is reset after a question and returns to service', async () => {
  const board = async () => (await operator('GET', `/operator/nodes/${node.id}/gpus`)).items[0];
  for (const [n, viewport] of SIZES.entries()) {
    worker.faults({ xid: [{ gpu, xid: 79, at: n + 11 }] });
    await waitFor('the board to be out of service', async () => (await board()).quarantine);
    const { page, faults, close } = await openPage(browser, portal.url, { headers, viewport });
    await page.goto(path);
    await settled(page);
    const reset = page.getByRole('button', { name: 'Reset GPU 0' });
    const dialog = page.getByRole('dialog', { name: 'Reset GPU 0?' });
    await reset.and(page.locator(':enabled')).click();
    await dialog.getByText('nvidia-smi resets the board', { exact: false }).waitFor();
    assert.deepEqual(await axeFindings(page), []);
    await dialog.getByRole('button', { name: 'Cancel' }).click();
    await dialog.waitFor({ state: 'hidden' });
    assert.equal((await board()).quarantine.code, 'gpu.xid', 'nothing was asked for');
    await reset.click();
    await dialog.getByRole('button', { name: 'Reset' }).click();
    await page.getByText('Reset: The board was reset and is free of faults.', { exact: true }).waitFor();
    await page.getByText('healthy', { exact: true }).waitFor();
    await page.getByRole('status').filter({ hasText: 'Out of service' }).waitFor({ state: 'detached' });
    const events = page.getByRole('table', { name: 'Latest events of the board and its node, newest first' });
    await events.getByText('Board reset requested').first().waitFor();
    assert.deepEqual(faults, []);
    await close();
  }
});

test('the reset of linked boards names all of them before it begins', async () => {
  const pair = await startWorker(portal, operator, 'pier-11', '2xV100');
  try {
    const found = (await operator('GET', '/operator/nodes')).items.find(({ name }) => name === 'pier-11');
    const list = async () => (await operator('GET', `/operator/nodes/${found.id}/gpus`)).items;
    await waitFor('the group of both boards', async () => (await list()).every(({ reset_group }) => reset_group?.length === 2));
    const [first, second] = await list();
    for (const [n, viewport] of SIZES.entries()) {
      pair.faults({ xid: [{ gpu: second.uuid, xid: 79, at: n + 1 }] });
      await waitFor('one board to be out of service', async () => (await list())[1].quarantine);
      const { page, faults, close } = await openPage(browser, portal.url, { headers, viewport });
      await page.goto(`/operator/nodes/${found.id}/boards/${first.uuid}`);
      await settled(page);
      const reset = page.getByRole('button', { name: 'Reset GPU 0' });
      const dialog = page.getByRole('dialog', { name: 'Reset GPU 0?' });
      await reset.and(page.locator(':enabled')).click();
      await dialog.getByText('Resets 2 boards: GPU 0, GPU 1.', { exact: false }).waitFor();
      assert.deepEqual(await axeFindings(page), []);
      await dialog.getByRole('button', { name: 'Cancel' }).click();
      await dialog.waitFor({ state: 'hidden' });
      assert.equal((await list())[0].quarantine, undefined, 'nothing was asked for');
      await reset.click();
      await dialog.getByRole('button', { name: 'Reset' }).click();
      await page.getByText('Reset: The board was reset and is free of faults.', { exact: true }).waitFor();
      await page.getByText('healthy', { exact: true }).waitFor();
      await waitFor('both boards to be in service', async () => (await list()).every((board) => !board.quarantine && !board.silent));
      assert.ok((await list()).every(({ task }) => task.kind === 'reset' && task.good), 'both were reset');
      assert.deepEqual(faults, []);
      await close();
    }
  } finally {
    await pair.stop();
  }
});

test('a board without its fabric names the service to start', async () => {
  const pair = await startWorker(portal, operator, 'pier-10', '2xH100-80GB');
  try {
    const found = (await operator('GET', '/operator/nodes')).items.find(({ name }) => name === 'pier-10');
    const [first] = found.gpus;
    pair.faults({ fabric: { [first.uuid]: 'not_started' } });
    const list = async () => (await operator('GET', `/operator/nodes/${found.id}/gpus`)).items;
    await waitFor('the board without its fabric', async () => (await list()).some(({ silent }) => silent));
    for (const viewport of SIZES) {
      const { page, faults, close } = await openPage(browser, portal.url, { headers, viewport });
      await page.goto(`/operator/nodes/${found.id}/boards/${first.uuid}`);
      await settled(page);
      const banner = page.getByRole('status').filter({ hasText: 'No NVLink fabric' });
      await banner.getByText('systemctl status nvidia-fabricmanager', { exact: false }).waitFor();
      await page.getByText('registration not started', { exact: true }).waitFor();
      assert.deepEqual(await axeFindings(page), []);
      assert.deepEqual(faults, []);
      await close();
    }
    pair.faults({});
    await waitFor('the boards to be in service', async () => (await list()).every(({ silent }) => !silent));
  } finally {
    await pair.stop();
  }
});
