// A share of a board: what it costs beside the whole one, how a job with it is launched by the form
// and named on its page, and how the form says what is wrong with one. Labels and the rule for idle devices,
// which stand in the same form.
import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import {
  bearer, boardsFree, chooseOffering, inOrg, jobIn, launchBrowser, openPage, settled, signIn, startDemo, waitFor,
} from './harness.mjs';

const BOARD = 'h100-80gb';

let demo, browser, call, headers, view;

before(async () => {
  demo = await startDemo();
  browser = await launchBrowser();
  call = bearer(demo.url, demo.tenant.token);
  headers = await signIn(demo.url, demo.tenant);
  view = await openPage(browser, demo.url, { headers, viewport: { width: 1440, height: 900 } });
});
after(async () => {
  await browser?.close();
  await demo?.stop();
});

const textbox = (page, name) => page.getByRole('textbox', { name, exact: true });
const share = (page) => textbox(page, 'Share of a board');
const launch = (page) => page.getByRole('button', { name: 'Launch job' });
const part = (page, name) => page.getByText(name, { exact: true });
const more = (page) => part(page, 'Placement and retries');

/** The awake form with a whole board chosen, and the part that has the share open. */
async function openForm(page) {
  await page.goto(inOrg(demo.tenant.slug, '/launch'));
  await settled(page);
  await launch(page).and(page.locator(':enabled')).waitFor();
  await more(page).click();
  // The form starts with a slice, which is not shared further.
  await page.locator('#share:disabled').waitFor();
  await chooseOffering(page, BOARD);
  await page.locator('#share:enabled').waitFor();
}

test('a share costs its part of the board', async () => {
  const { page } = view;
  await openForm(page);
  const shown = async () =>
    Number(/\$([\d.]+)/.exec(await page.locator('.summary__row--lead dd').innerText())?.[1]);
  const near = (a, b) => Math.abs(a - b) < 0.001;
  const { items } = await call('GET', '/offerings');
  const whole = items.find((o) => o.slug === BOARD).price.per_hour_micros / 1_000_000;
  await waitFor('the price of the whole board', async () => near(await shown(), whole));
  await share(page).fill('10');
  await waitFor('a tenth of that price', async () => near(await shown(), whole / 10));
});

test('it is launched by the form and says on its page how much of a board it has', async () => {
  const { page } = view;
  await textbox(page, 'Name').fill('a-tenth');
  await textbox(page, 'Command').fill('echo a tenth is enough');
  await launch(page).click();
  await page.waitForURL(/\/jobs\/job_/);
  await page.getByRole('heading', { level: 1, name: 'a-tenth' }).waitFor();
  await page.getByText('10 % of a board', { exact: true }).waitFor();
  // Two twentieths of the board.
  await page.locator('.berth-bar[data-cells="20"] .tile[data-size="2"]').waitFor();
  const [id] = /job_[0-9a-z]+/.exec(page.url());
  const done = await jobIn(call, demo.tenant.organization, id, ['succeeded']);
  assert.equal(done.gpu_milli, 100);
  assert.deepEqual(done.devices.map((device) => device.gpu_milli), [100]);
  const charge = (BigInt(done.nano_per_second) * BigInt(done.metered_ms)) / 1_000_000n;
  assert.equal(BigInt(done.cost_micros), charge);
});

test('the form begins with the offering that was launched last', async () => {
  const { page } = view;
  await page.goto(inOrg(demo.tenant.slug, '/launch'));
  await page.getByRole('radio', { name: /Whole board.*h100-80gb/ }).and(page.locator(':checked')).waitFor();
});

test('labels and the rule for idle devices reach the portal', async () => {
  const { page, close } = await openPage(browser, demo.url, { headers });
  await openForm(page);
  await textbox(page, 'Name').fill('labelled');
  await textbox(page, 'Command').fill('echo labelled');
  await part(page, 'Secrets, volumes, ports and labels').click();
  // Inputs with suggestions are combo boxes.
  const label = (name, at) => page.getByRole('combobox', { name, exact: true }).nth(at);
  for (const [at, value] of ['ocr', 'night shift'].entries()) {
    await page.getByRole('button', { name: 'Add label' }).click();
    await label('Label value', at).fill(value);
  }
  await label('Label key', 0).fill('project');
  await launch(page).click();
  await page.getByRole('group', { name: 'Label 2', exact: true }).getByText(/^Label: Enter a name for the label/).waitFor();
  assert.equal(await label('Label key', 0).getAttribute('aria-invalid'), null);
  await label('Label key', 1).fill('team');
  await page.getByRole('checkbox', { name: /Stop when idle/ }).check();
  await textbox(page, 'Utilization below').fill('30');
  // What only the portal can judge stands at its field.
  await textbox(page, 'Idle period').fill('5');
  await launch(page).click();
  await page.locator('#idle_minutes-error').getByText(/10 minutes/).waitFor();
  await textbox(page, 'Idle period').fill('30');
  await page.getByText('Copy as curl', { exact: true }).click();
  await page.getByText(/"stop_when_idle":\{"below_percent":30,"for_s":1800\}/).first().waitFor();
  await page.getByText(/"labels":\{"project":"ocr","team":"night shift"\}/).first().waitFor();
  await launch(page).click();
  await page.waitForURL(/\/jobs\/job_/);
  await page.getByText('below 30 % utilization for 30 min', { exact: true }).waitFor();
  await page.getByText('team = night shift', { exact: true }).waitFor();
  const [id] = /job_[0-9a-z]+/.exec(page.url());
  const done = await jobIn(call, demo.tenant.organization, id, ['succeeded']);
  assert.deepEqual(done.labels, { project: 'ocr', team: 'night shift' });
  assert.deepEqual(done.stop_when_idle, { below_percent: 30, for_s: 1800 });
  await close();
});

test('what few jobs need is in the request, and what is wrong with it at its field', async () => {
  const { page, close } = await openPage(browser, demo.url, { headers });
  await openForm(page);
  await textbox(page, 'Name').fill('keeps-a-state');
  await textbox(page, 'Command').fill('true');
  await part(page, 'Checkpoints and artifacts').click();
  await page.locator('#checkpoint_every:disabled').waitFor();
  await textbox(page, 'Checkpoint directory').fill('ckpt');
  await textbox(page, 'Checkpoint interval').fill('2');
  await textbox(page, 'Artifacts').fill('out/**\n/etc/*');
  await part(page, 'Checkpoints and artifacts').click();
  await textbox(page, 'Artifacts').waitFor({ state: 'hidden' });
  await part(page, 'Advanced').click();
  await page.getByLabel('Network', { exact: true }).selectOption('none');
  await textbox(page, 'Offline tolerance').fill('600');
  await launch(page).click();
  await page.locator('#checkpoint_every-error').getByText(/5 to 86400 seconds/).waitFor();
  await page.locator('#artifacts-error').getByText(/^Pattern 2: /).waitFor();
  await waitFor('the first of them to be gone to', () =>
    page.evaluate(() => document.activeElement?.id === 'checkpoint_every'));
  await textbox(page, 'Checkpoint interval').fill('60');
  await textbox(page, 'Artifacts').fill('out/**');
  const registry = textbox(page, 'Registry secret');
  assert.equal(await registry.count(), 0, 'only an image comes from a registry');
  await textbox(page, 'Image').fill('ghcr.io/lab/train:7');
  await registry.fill('ghcr-pull');
  await part(page, 'Copy as curl').click();
  for (const said of [
    /"registry":\{"secret":"ghcr-pull"\}/, /"dir":"ckpt","every_s":60/, /"artifacts":\["out\/\*\*"\]/,
    /"network":"none"/, /"lease_s":600/,
  ]) {
    await page.getByText(said).first().waitFor();
  }
  await close();
});

test('its part of the board is free again', () => boardsFree(bearer(demo.url, demo.operator.token)));

test('nothing went wrong in the browser on the way', () => assert.deepEqual(view.faults, []));

test('what is wrong with a share stands at its field, and opens the part that it is in', async () => {
  const { page, close } = await openPage(browser, demo.url, { headers });
  await openForm(page);
  const said = page.locator('#share-error');
  await share(page).fill('a tenth');
  await more(page).click();
  await share(page).waitFor({ state: 'hidden' });
  await launch(page).click();
  await page.locator('#share[aria-invalid="true"]').waitFor();
  assert.match(await said.innerText(), /percentage/);

  // What only the portal can judge stands there too.
  await share(page).fill('10');
  await page.getByRole('spinbutton', { name: 'Devices' }).fill('2');
  await launch(page).click();
  await said.getByText(/one board/).waitFor();
  await close();
});
