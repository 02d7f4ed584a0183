// The boards of a node as its operator sees them: facts, a check that the worker answers, and a mode that
// is not changed without a question.
import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { bearer, launchBrowser, openPage, settled, signIn, startDemo, waitFor } from './harness.mjs';

let demo, browser, operator, page, faults, node;

before(async () => {
  demo = await startDemo();
  browser = await launchBrowser();
  operator = bearer(demo.url, demo.operator.token);
  [node] = (await operator('GET', '/operator/nodes')).items;
  const headers = await signIn(demo.url, demo.operator);
  ({ page, faults } = await openPage(browser, demo.url, { headers, viewport: { width: 1440, height: 900 } }));
});
after(async () => {
  await browser?.close();
  await demo?.stop();
});

const button = (where, name) => where.getByRole('button', { name });
const card = (index) => page.locator('section.card').filter({ hasText: `GPU ${index} ·` });
const board = async (index) => {
  const { items } = await operator('GET', `/operator/nodes/${node.id}/gpus`);
  return items.find((gpu) => gpu.index === index);
};

test('a node leads to its boards, which say what they are', async () => {
  await page.goto('/operator/nodes');
  await settled(page);
  await page.getByRole('link', { name: node.name, exact: true }).click();
  await page.getByRole('heading', { name: `Boards of ${node.name}` }).waitFor();
  const { uuid, facts } = await board(0);
  await card(0).getByText(uuid).waitFor();
  await card(0).getByText(facts.pci_bus_id).waitFor();
  await card(0).getByText('MiB', { exact: false }).first().waitFor();
});

test('the checks of the host name the next step of each fault', async () => {
  const { findings } = await waitFor('the checks of the host', async () => {
    const diagnosis = await operator('GET', `/operator/nodes/${node.id}/diagnosis`);
    return diagnosis.findings.length > 0 && diagnosis;
  });
  await page.goto(`/operator/nodes/${node.id}`);
  await settled(page);
  const checks = page.getByRole('region', { name: 'Host checks' });
  await checks.getByText(`${findings.length} checks: `).waitFor();
  for (const { state, code, found, next } of findings.filter(({ state }) => state !== 'ok')) {
    const word = `${state[0].toUpperCase()}${state.slice(1)}`;
    await checks.getByText(`${word}: ${code}`, { exact: true }).waitFor();
    await checks.getByText(found, { exact: true }).waitFor();
    await checks.getByText(next).first().waitFor();
  }
  const hasFault = findings.some(({ state }) => state !== 'ok');
  const source = checks.getByText('The worker wrote these texts and commands. Run them on its host only.');
  assert.equal(await source.count(), hasFault ? 1 : 0);
  const [good] = findings.filter(({ state }) => state === 'ok');
  const text = checks.getByText(good.found, { exact: true });
  assert.equal(await text.isVisible(), false, 'a check without a fault is collapsed');
  await checks.getByText('without a fault').click();
  await text.waitFor();
});

test('a check is asked for and answered by the worker', async () => {
  const check = button(card(0), 'Check GPU 0');
  await check.and(page.locator(':enabled')).click();
  await card(0).getByText(/^Check: (The board is free of faults|Processes use the board|\d+ MiB)/).waitFor();
  assert.equal((await board(0)).task.kind, 'check');
});

test('a mode is not changed without a question', async () => {
  const before = await board(0);
  await button(card(0), /^(Enable|Disable) MIG on GPU 0$/).click();
  const dialog = page.getByRole('dialog', { name: /^(Enable|Disable) MIG on GPU 0\?$/ });
  await dialog.getByText('No new jobs are placed on this board').waitFor();
  await button(dialog, 'Cancel').click();
  await dialog.waitFor({ state: 'hidden' });
  const now = await board(0);
  assert.deepEqual([now.quarantine, now.task.kind], [before.quarantine, 'check']);
  assert.deepEqual(faults, []);
});
