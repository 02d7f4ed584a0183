// The judged windows of a promise on the page of its service: a portal whose clock moves by days.
import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { axeFindings, widthFindings } from './checks.mjs';
import {
  api, inOrg, launchBrowser, openPage, settled, signIn, signUp, startClockedPortal, startWorker,
} from './harness.mjs';

const OPERATOR = { name: 'Harbour master', email: 'operator@example.org', password: 'lantern quay seven drizzle' };
const BOARD = 'h100-80gb';
const HOUR_S = 3_600;
const SIZES = [{ width: 1440, height: 900 }, { width: 390, height: 844 }];

let portal, browser, worker, tenant, path;

before(async () => {
  portal = await startClockedPortal();
  browser = await launchBrowser();
  await api(portal.url, {})('POST', '/setup', { token: portal.token, ...OPERATOR });
  const operator = api(portal.url, await signIn(portal.url, OPERATOR));
  worker = await startWorker(portal, operator, 'pier-1', '1xH100-80GB');
  await operator('POST', '/operator/prices', { offering: BOARD, per_hour_micros: 2_990_000 });
  tenant = await signUp(portal.url, 'Longshore');
  const job = { name: 'tide', offering: BOARD, max_duration_s: HOUR_S, script: 'exec sleep 3600' };
  const service = await tenant.api('POST', `/orgs/${tenant.org}/services`, { name: 'tide', revision: { job, port: 8_000 } });
  path = `/services/${service.id}`;
  // The windows need no replica.
  await tenant.api('PATCH', `/orgs/${tenant.org}${path}`, { stopped: true });
  const availability = { good_ppm: 999_000, credit_basis_points: 1_000 };
  const { id } = await operator('POST', '/operator/promises', { name: 'gold', terms: { window: 'hour', availability } });
  await tenant.api('PUT', `/orgs/${tenant.org}${path}/promise`, { promise: id });
});
after(async () => {
  await browser?.close();
  await worker?.stop();
  await portal?.stop();
});

test('judged windows are a table with pages, at both widths', async () => {
  await portal.forward(60 * HOUR_S);
  // The session of before has ended.
  const headers = await signIn(portal.url, tenant);
  const { items } = await api(portal.url, headers)('GET', `/orgs/${tenant.org}${path}/promise/windows?limit=200`);
  assert.ok(items.length > 55, `${items.length} windows`);
  for (const viewport of SIZES) {
    const { page, faults, close } = await openPage(browser, portal.url, { headers, viewport });
    await page.goto(inOrg(tenant.slug, path));
    await settled(page);
    await page.getByText('The service has the promise gold since').waitFor();
    await page.getByText('kept so far').waitFor();
    const rows = page.getByRole('table', { name: 'Judged windows' }).getByRole('row');
    assert.equal(await rows.count(), 51, 'the head and the first page');
    const more = page.getByRole('button', { name: 'Load more' });
    await more.and(page.locator(':enabled')).click();
    await more.waitFor({ state: 'detached' });
    assert.equal(await rows.count(), items.length + 1);
    assert.equal(await rows.getByText('kept', { exact: true }).count(), items.length);
    assert.deepEqual([...(await axeFindings(page)), ...(await widthFindings(page)), ...faults], []);
    await close();
  }
});
