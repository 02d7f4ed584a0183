// Tokens: scopes by preset or one by one, networks, and the refusal of requests outside of them.
import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { inOrg, launchBrowser, openPage, settled, signUp, startDemo } from './harness.mjs';

let demo, browser;
before(async () => {
  demo = await startDemo();
  browser = await launchBrowser();
});
after(async () => {
  await browser?.close();
  await demo?.stop();
});

const awake = (button) => button.and(button.page().locator(':enabled')).waitFor();
const status = async (path, token) =>
  (await fetch(`${demo.url}/api/v1${path}`, { headers: { authorization: `Bearer ${token}` } })).status;

test('a token has the scopes and the networks of the form', async () => {
  const owner = await signUp(demo.url);
  const { page, close, faults } = await openPage(browser, demo.url, { headers: owner.headers });
  await page.goto(inOrg(owner.slug, '/tokens'));
  await settled(page);
  const make = page.getByRole('button', { name: 'Create token' });
  await awake(make);
  const scope = (name) => page.getByRole('checkbox', { name: new RegExp(`^${name}`) });
  assert.ok(await scope('jobs:write').isChecked(), 'the first preset is Jobs');

  // A preset chooses its scopes; a single choice ends the preset.
  await page.getByRole('radio', { name: 'Read only' }).check();
  assert.ok(await scope('billing:read').isChecked());
  assert.ok(!(await scope('jobs:write').isChecked()));
  await page.getByRole('radio', { name: 'Everything' }).check();
  await scope('jobs:read').waitFor({ state: 'hidden' });
  await page.getByRole('radio', { name: 'Read only' }).check();
  await scope('billing:read').uncheck();
  assert.ok(await page.getByRole('radio', { name: 'Selected' }).isChecked());

  await page.getByRole('textbox', { name: 'Name' }).fill('reader');
  await page.getByRole('textbox', { name: 'Networks' }).fill('192.0.2.0/33');
  await make.click();
  await page.locator('#token-networks-error').waitFor();
  await page.getByRole('textbox', { name: 'Networks' }).fill('127.0.0.1\n::1');
  await make.click();
  const shown = page.locator('.secret');
  await shown.getByText('Copy the token now.').waitFor();
  const token = (await shown.getByRole('group', { name: 'API token' }).locator('code').innerText()).trim();
  const row = page.getByRole('table', { name: 'Tokens' }).getByRole('row').filter({ hasText: 'reader' });
  await row.getByText('fleet:read').waitFor();
  await row.getByText('from 127.0.0.1/32, ::1/128').waitFor();
  assert.equal(await row.getByText('billing:read').count(), 0);

  assert.equal(await status(`/orgs/${owner.org}/jobs`, token), 200);
  assert.equal(await status(`/orgs/${owner.org}/balance`, token), 403);
  const far = { name: 'far', role: 'viewer', networks: ['192.0.2.0/24'] };
  const { secret } = await owner.api('POST', `/orgs/${owner.org}/tokens`, far);
  assert.equal(await status('/me', secret), 403);
  assert.deepEqual(faults.filter((fault) => !/status of 422/.test(fault)), []);
  await close();
});
