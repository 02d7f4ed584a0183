// RDMA: the ports of a node, the grant of an organization by the operator, the choice in the launch form, and the row
// of the job.
import assert from 'node:assert/strict';
import { mkdirSync, mkdtempSync, rmSync, symlinkSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, before, test } from 'node:test';
import { axeFindings } from './checks.mjs';
import {
  api, bearer, chooseOffering, ENDED, inOrg, jobIn, launchBrowser, openPage, settled, signIn, signUp, startBarePortal,
  startWorker,
} from './harness.mjs';

const OPERATOR = { name: 'Harbour master', email: 'operator@example.org', password: 'lantern quay seven drizzle' };
const SIZES = [{ width: 1440, height: 900 }, { width: 390, height: 844 }];

let portal, browser, operator, headers, tenant, worker, devices;

/** A directory with one RDMA device in the form of sysfs, beside the first simulated board. */
function rdmaDevices() {
  const root = mkdtempSync(join(tmpdir(), 'berth-rdma-'));
  const bridge = 'pci0000:0e/0000:0e:01.0';
  const nic = `${bridge}/0000:0f:01.0/0000:12:00.0`;
  const board = `${bridge}/0000:0f:00.0/0000:10:00.0`;
  const device = join(root, 'sys/devices', nic, 'infiniband/mlx5_0');
  mkdirSync(join(device, 'ports/1'), { recursive: true });
  mkdirSync(join(root, 'sys/devices', nic, 'net/ib0'), { recursive: true });
  mkdirSync(join(root, 'sys/devices', board), { recursive: true });
  mkdirSync(join(root, 'sys/class/infiniband'), { recursive: true });
  mkdirSync(join(root, 'sys/bus/pci/devices'), { recursive: true });
  const port = { state: '4: ACTIVE', rate: '400 Gb/sec (4X NDR)', link_layer: 'InfiniBand', lid: '0x2a' };
  for (const [name, text] of Object.entries(port)) writeFileSync(join(device, 'ports/1', name), `${text}\n`);
  symlinkSync('../..', join(device, 'device'));
  symlinkSync(`../../devices/${nic}/infiniband/mlx5_0`, join(root, 'sys/class/infiniband/mlx5_0'));
  symlinkSync(`../../../devices/${board}`, join(root, 'sys/bus/pci/devices/0000:10:00.0'));
  return root;
}

before(async () => {
  devices = rdmaDevices();
  portal = await startBarePortal();
  browser = await launchBrowser();
  await api(portal.url, {})('POST', '/setup', { token: portal.token, ...OPERATOR });
  headers = await signIn(portal.url, OPERATOR);
  operator = bearer(portal.url, (await api(portal.url, headers)('POST', '/operator/tokens', { name: 'test' })).secret);
  process.env.BERTH_SIMULATE_RDMA = devices;
  worker = await startWorker(portal, operator, 'pier-1', '1xH100-80GB');
  delete process.env.BERTH_SIMULATE_RDMA;
  await operator('POST', '/operator/prices', { offering: 'h100-80gb', per_hour_micros: 3_600_000 });
  tenant = await signUp(portal.url, 'Tidewater');
  await operator('POST', `/operator/orgs/${tenant.org}/credits`, { amount_micros: 20_000_000, memo: 'Welcome' });
});
after(async () => {
  await browser?.close();
  await worker?.stop();
  await portal?.stop();
  if (devices) rmSync(devices, { recursive: true, force: true });
});

const button = (where, name) => where.getByRole('button', { name, exact: true });
const enabled = (locator) => locator.and(locator.page().locator(':enabled'));

async function check(page) {
  const wide = await page.evaluate(() => document.documentElement.scrollWidth - window.innerWidth);
  assert.ok(wide <= 0, `${wide} px too wide`);
  assert.deepEqual(await axeFindings(page), []);
}

test('the page of a node has its RDMA ports with the nearest boards', async () => {
  const { items } = await operator('GET', '/operator/nodes');
  for (const viewport of SIZES) {
    const { page, faults, close } = await openPage(browser, portal.url, { headers, viewport });
    await page.goto(`/operator/nodes/${items[0].id}`);
    await settled(page);
    const row = page.getByRole('row').filter({ hasText: 'mlx5_0 port 1' });
    await row.waitFor();
    const text = await row.innerText();
    for (const part of ['ib0', 'ACTIVE', 'InfiniBand', '400 Gb/s', 'GPU 0 (PIX)']) assert.ok(text.includes(part), text);
    await check(page);
    assert.deepEqual(faults, []);
    await close();
  }
});

test('the choice of RDMA follows the grant of the operator', async () => {
  for (const viewport of SIZES) {
    const launch = await openPage(browser, portal.url, { headers: tenant.headers, viewport });
    const choice = launch.page.getByRole('checkbox', { name: /^RDMA/ });
    await launch.page.goto(inOrg(tenant.slug, '/launch'));
    await settled(launch.page);
    await launch.page.getByText('Advanced', { exact: true }).click();
    await launch.page.getByLabel('Network', { exact: true }).waitFor();
    assert.equal(await choice.count(), 0, 'no grant');

    const desk = await openPage(browser, portal.url, { headers, viewport });
    await desk.page.goto(`/operator/limits/${tenant.org}`);
    await settled(desk.page);
    await enabled(button(desk.page, 'Save grant')).waitFor();
    await desk.page.getByRole('checkbox', { name: 'Jobs may use RDMA' }).check();
    await button(desk.page, 'Save grant').click();
    await desk.page.getByText('Saved. Jobs of the organization may use RDMA.').waitFor();
    await check(desk.page);
    assert.deepEqual(await tenant.api('GET', `/orgs/${tenant.org}/rdma`), { granted: true });

    await launch.page.reload();
    await settled(launch.page);
    await launch.page.getByText('Advanced', { exact: true }).click();
    await choice.waitFor();
    await check(launch.page);
    // The next width begins anew.
    await operator('PUT', `/operator/orgs/${tenant.org}/rdma`, { granted: false });
    assert.deepEqual([...desk.faults, ...launch.faults], []);
    await desk.close();
    await launch.close();
  }
});

test('a job with RDMA gets the ports of its node and shows it', async () => {
  await operator('PUT', `/operator/orgs/${tenant.org}/rdma`, { granted: true });
  const { page, faults, close } = await openPage(browser, portal.url, { headers: tenant.headers, viewport: SIZES[0] });
  await page.goto(inOrg(tenant.slug, '/launch'));
  await settled(page);
  await enabled(page.getByRole('button', { name: 'Launch job' })).waitFor();
  await chooseOffering(page, 'h100-80gb');
  await page.getByRole('textbox', { name: 'Name', exact: true }).fill('ring');
  await page.getByRole('textbox', { name: 'Command', exact: true }).fill("sh -c 'echo $NCCL_IB_HCA $NCCL_NET'");
  await page.getByText('Advanced', { exact: true }).click();
  await page.getByRole('checkbox', { name: /^RDMA/ }).check();
  await page.getByRole('button', { name: 'Launch job' }).click();
  await page.waitForURL(/\/jobs\/job_/);
  const id = page.url().match(/job_[0-9A-Za-z]+/)[0];
  const ended = await jobIn(tenant.api, tenant.org, id, ENDED);
  assert.equal(ended.state, 'succeeded');
  assert.equal(ended.rdma, true);
  await page.getByText('all adapters of each node', { exact: false }).waitFor();
  await page.getByText('=mlx5_0:1 IB').first().waitFor();
  await check(page);
  assert.deepEqual(faults, []);
  await close();
});
